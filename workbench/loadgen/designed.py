"""Loads chosen to time an engine: batches and lengths on a grid, so that every kind of step is seen several times.

All are closed loops that end by themselves, so which steps they consist of depends on the scheduler alone, and
repeats time the very same steps.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.build import build_scheduler
from engine.engine_core import EngineCore
from engine.executor.cost_model.step_shape import StepShape
from engine.executor.recording import RecordingExecutor
from workbench.loadgen.driver import drive
from workbench.loadgen.embedded import EmbeddedTarget
from workbench.metrics.records import RunRecord
from workbench.scenario import Scenario
from workbench.workload import generate_workload
from workbench.workload.records import ModelLimits, Workload

FloatArray = npt.NDArray[np.float64]

_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_WAVE_PROMPTS = (16, 60, 160)
_DECODE_PROMPTS = (12, 100, 400, 1200, 4000)
_PROMPTS = (4, 12, 30, 64, 120, 240, 500, 1000, 2000, 4000)
_PROMPT_BATCHES = (1, 2, 4, 12, 32)
_OUTPUT = (16, 64)
"""Lengths that end at different steps, so that prompts come in while others decode."""
_FULL = 0.92
"""Of the KV cache that a load may fill: beyond, requests preempt each other and say little about a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignedLoad:
    """One point of the grid."""

    name: str
    concurrency: int
    num_requests: int
    prompt: tuple[int, int]
    """Shortest and longest, tokens, uniform."""
    output: tuple[int, int]
    think_time_s: float = 0.0

    def workload(self, limits: ModelLimits, *, seed: int = 0) -> Workload:
        """The same requests for the same seed."""
        lengths = {
            "input_tokens": {"kind": "uniform", "low": self.prompt[0], "high": self.prompt[1]},
            "output_tokens": {"kind": "uniform", "low": self.output[0], "high": self.output[1]},
        }
        arrivals = {"kind": "closed_loop", "concurrency": self.concurrency, "think_time": self.think_time_s}
        values: dict[str, Any] = {
            "name": "designed",
            "seed": seed,
            "workload": {
                "num_requests": self.num_requests,
                "arrivals": arrivals,
                "classes": [{"name": "all", **lengths}],
            },
        }
        return generate_workload(Scenario.model_validate(values), limits)


def design_loads(
    *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, num_kv_tokens: int
) -> list[DesignedLoad]:
    """The grid within an engine's limits: decodes at every batch and several lengths, prompts alone and together."""
    return [
        *_decode_loads(max_num_seqs, max_model_len, num_kv_tokens),
        *_wave_loads(max_num_seqs, max_model_len, num_kv_tokens),
        *_prompt_loads(max_num_seqs, max_num_batched_tokens, max_model_len, num_kv_tokens),
    ]


def _decode_loads(max_num_seqs: int, max_model_len: int, num_kv_tokens: int) -> Iterator[DesignedLoad]:
    longest_output = min(_OUTPUT[1], max(max_model_len // 4, 1))
    output = (min(_OUTPUT[0], longest_output), longest_output)
    batches = sorted({batch for batch in _BATCHES if batch < max_num_seqs} | {max_num_seqs})
    for batch in batches:
        for prompt in _DECODE_PROMPTS:
            span = (max(prompt // 2, 1), min(prompt * 3 // 2, max_model_len - longest_output - 1))
            fits = batch * (sum(span) / 2 + longest_output) <= _FULL * num_kv_tokens
            if span[0] <= span[1] and fits and span[1] + longest_output <= _FULL * num_kv_tokens:
                yield DesignedLoad(
                    name=f"decode {batch} x {prompt}",
                    concurrency=batch,
                    num_requests=batch + max(6, batch // 2),
                    prompt=span,
                    output=output,
                )


def _wave_loads(max_num_seqs: int, max_model_len: int, num_kv_tokens: int) -> Iterator[DesignedLoad]:
    """Short answers, so that several prompts come in together while others decode."""
    for batch in (batch for batch in (8, 16, 32, 64) if batch <= max_num_seqs):
        for prompt in _WAVE_PROMPTS:
            span = (max(prompt // 2, 1), prompt * 3 // 2)
            if span[1] + 6 < max_model_len and batch * (prompt + 6) <= _FULL * num_kv_tokens:
                yield DesignedLoad(
                    name=f"waves {batch} x {prompt}",
                    concurrency=batch,
                    num_requests=batch * 4,
                    prompt=span,
                    output=(2, 6),
                )


def _prompt_loads(
    max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, num_kv_tokens: int
) -> Iterator[DesignedLoad]:
    for batch in (batch for batch in _PROMPT_BATCHES if batch <= max_num_seqs):
        for prompt in _PROMPTS:
            span = (max(prompt // 2, 1), min(prompt, max_model_len - 2))
            # More than one step's budget at once says nothing new, but for one prompt in chunks.
            useful = batch == 1 or batch * span[0] <= max_num_batched_tokens
            if span[0] <= span[1] and useful and batch * span[1] <= _FULL * num_kv_tokens:
                yield DesignedLoad(
                    name=f"prompts {batch} x {prompt}",
                    concurrency=batch,
                    num_requests=batch * (4 if batch > 1 else 8),
                    prompt=span,
                    output=(1, 1),
                )


def idle_load(max_model_len: int) -> DesignedLoad:
    """One short request at a time with pauses: what an engine that slept adds to the first token."""
    prompt = max(min(64, max_model_len // 4), 1)
    return DesignedLoad(
        name="idle", concurrency=1, num_requests=24, prompt=(prompt, prompt), output=(1, 1), think_time_s=0.05
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLoad:
    """One run of a designed load."""

    shapes: list[StepShape]
    period_s: FloatArray
    """[num_steps] from the start of each step to the start of the next; the last one's to its end."""
    executor_s: FloatArray
    """[num_steps] from planning to the step's tokens: the rest of the period is the loop around it."""
    is_saturated: npt.NDArray[np.bool_]
    record: RunRecord


def observe(target: EmbeddedTarget, workload: Workload) -> ObservedLoad:
    """Run a workload on a fresh scheduler and take the shape and time of every step."""
    recorder = RecordingExecutor(target.executor)
    core = EngineCore(build_scheduler(target.resolved), recorder, target.clock)
    gc.collect()
    record = drive(core, workload, target.clock)
    steps, shapes = record.steps, recorder.shapes()
    if len(shapes) != len(steps):
        raise RuntimeError(f"{len(shapes)} steps were executed but {len(steps)} recorded")
    usable = (target.resolved.num_blocks - 1) or 1
    cap = target.resolved.config.scheduler.max_num_seqs
    return ObservedLoad(
        shapes=shapes,
        period_s=np.diff(np.append(steps.start_s, steps.end_s[-1:])),
        executor_s=steps.end_s - steps.start_s,
        is_saturated=(steps.num_blocks_in_use >= 0.85 * usable) | (steps.num_running >= 0.85 * cap),
        record=record,
    )
