"""The embedded engine as a load target: a real model in this process, on the wall clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.build import build_engine, build_scheduler
from engine.clock import WallClock
from engine.config import EngineConfig
from engine.core.preemption import SwapPreemption
from engine.core.scheduler import Scheduler
from engine.engine_core import EngineCore
from engine.resolve import ResolvedConfig
from engine.warm_up import warm_up
from workbench.loadgen.driver import drive
from workbench.loadgen.target import ProgressCallback
from workbench.metrics.records import RunRecord, StopRule
from workbench.workload.records import ModelLimits, Workload


class EmbeddedTarget:
    """Builds and warms an engine; each `run` gets a fresh scheduler and an empty prefix cache.

    Raises `engine.errors.ConfigError` (or its `MemoryBudgetError`) at construction for what cannot run, and
    `engine.errors.ModelLoadError` for weights that cannot be read.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.clock = WallClock()
        core, self.resolved = build_engine(config, clock=self.clock)
        self.executor = core.executor
        warm_up(self._core(), self.resolved)

    @property
    def limits(self) -> ModelLimits:
        """What a workload for this engine must keep to."""
        return ModelLimits(max_model_len=self.resolved.max_model_len, vocab_size=self.resolved.spec.vocab_size)

    def run(
        self,
        workload: Workload,
        *,
        deadline_s: float | None = None,
        on_progress: ProgressCallback | None = None,
        stop: StopRule | None = None,
    ) -> RunRecord:
        core = self._core()
        record = drive(
            core,
            workload,
            self.clock,
            engine=engine_facts(self.resolved),
            deadline_s=deadline_s,
            on_progress=on_progress,
            stop=stop,
        )
        return with_scheduler_facts(record, core.scheduler)

    def close(self) -> None:
        self.executor.close()

    def _core(self) -> EngineCore:
        return EngineCore(build_scheduler(self.resolved), self.executor, self.clock)


def with_scheduler_facts(record: RunRecord, scheduler: Scheduler) -> RunRecord:
    """The record with what only the scheduler counted: prefix lookups, decisions, swapped blocks."""
    lookups = scheduler.prefix_cache_stats()
    notes = record.notes
    if isinstance(scheduler.preemption, SwapPreemption):
        swap = scheduler.preemption
        notes += (f"{swap.num_blocks_swapped_out} blocks swapped out, {swap.num_blocks_swapped_in} swapped in",)
    return replace(
        record,
        prefix_queried_tokens=lookups.queried_tokens,
        prefix_hit_tokens=lookups.hit_tokens,
        decision_fingerprint=scheduler.fingerprint.hexdigest(),
        notes=notes,
    )


def engine_facts(resolved: ResolvedConfig) -> dict[str, Any]:
    """The resolved engine as it is stored with a run: every parameter, `num_blocks`, memory in bytes, and reasons."""
    memory = resolved.memory
    return {
        **resolved.config.to_dict(),
        "num_blocks": resolved.num_blocks,
        "bytes_per_block": memory.bytes_per_block,
        "weight_bytes": memory.weight_bytes,
        "activation_bytes": memory.activation_bytes,
        "kv_bytes": memory.kv_bytes,
        "reasons": dict(resolved.reasons),
    }
