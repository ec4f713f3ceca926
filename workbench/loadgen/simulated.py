"""A simulated GPU as a load target: the real scheduler on a virtual clock."""

from __future__ import annotations

from dataclasses import replace

from engine.config import EngineConfig
from engine.simulation import SimulatedDevice, build_simulation, resolve_simulated
from workbench.loadgen.driver import drive
from workbench.loadgen.embedded import engine_facts
from workbench.loadgen.target import ProgressCallback
from workbench.metrics.records import RunRecord
from workbench.workload.records import ModelLimits, Workload


class SimulatedTarget:
    """Each `run` is a fresh simulation; equal workloads give equal records.

    Raises `engine.errors.ConfigError` (or its `MemoryBudgetError`) at construction for what would not start.
    """

    def __init__(self, config: EngineConfig, device: SimulatedDevice) -> None:
        self._config, self._device = config, device
        self.resolved = resolve_simulated(config, device)

    @property
    def limits(self) -> ModelLimits:
        return ModelLimits(max_model_len=self.resolved.max_model_len, vocab_size=self.resolved.spec.vocab_size)

    def run(
        self, workload: Workload, *, deadline_s: float | None = None, on_progress: ProgressCallback | None = None
    ) -> RunRecord:
        simulation = build_simulation(self._config, self._device, spec=self.resolved.spec)
        profile = simulation.cost.profile
        facts = {
            **engine_facts(simulation.resolved),
            "gpu": self._device.gpu.id,
            "tensor_parallel_size": self._device.tensor_parallel_size,
            "weights": self._device.precision.weights,
            "kv": self._device.precision.kv,
            "profile": {"gpu": profile.gpu_id, **profile.provenance},
        }
        record = drive(
            simulation.core,
            workload,
            simulation.clock,
            engine=facts,
            deadline_s=deadline_s,
            on_progress=on_progress,
        )
        lookups = simulation.core.scheduler.prefix_cache_stats()
        return replace(
            record,
            prefix_queried_tokens=lookups.queried_tokens,
            prefix_hit_tokens=lookups.hit_tokens,
            decision_fingerprint=simulation.core.scheduler.fingerprint.hexdigest(),
        )

    def close(self) -> None:
        pass
