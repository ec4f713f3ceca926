"""Calibrate on the embedded engine: run the designed loads several times over, fit the steps' medians."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.executor.cost_model.calibration_profile import CalibrationProfile, Validity
from engine.executor.cost_model.machine import MachineCost
from engine.executor.machine_calibration import TimedLoad, fit_machine
from engine.resolve import ResolvedConfig
from engine.worker.device import probe_device
from workbench.loadgen.designed import DesignedLoad, ObservedLoad, design_loads, idle_load, observe
from workbench.loadgen.embedded import EmbeddedTarget

_NUM_REPEATS = 5
_TIMED_BY = ("dtype", "kv_cache_dtype", "attention_backend", "threads", "block_size")
"""Engine parameters on which a step's time depends beside its batch."""


def calibrate_machine(
    config: EngineConfig,
    *,
    name: str,
    provenance: Mapping[str, Any],
    report: Callable[[str], None] = lambda line: None,
    num_repeats: int = _NUM_REPEATS,
    loads: Sequence[DesignedLoad] | None = None,
    after_repeat: Callable[[EmbeddedTarget], None] = lambda target: None,
) -> CalibrationProfile:
    """Time the designed loads (or `loads`) on this machine. Raises `ConfigError` or `ModelLoadError`.

    `after_repeat` is called with the warm engine after each pass over the loads, for whoever measures on the side.
    """
    report("starting the engine")
    target = EmbeddedTarget(config)
    try:
        if loads is None:
            loads = _loads_for(target.resolved)
        idle = idle_load(target.resolved.max_model_len)
        observed = _observe_interleaved(target, [*loads, idle], num_repeats, report, after_repeat)
    finally:
        target.close()
    *timed, idle_runs = [_median_load(runs) for runs in observed]
    cost, errors = fit_machine(timed)
    shapes = [shape for load in timed for shape in load.shapes]
    resolved = target.resolved.config.to_dict()
    return CalibrationProfile(
        kind="machine",
        name=name,
        model=config.model.model,
        machine=cost,
        wake_s=_wake_s(cost, idle_runs, observed[-1]),
        device=asdict(probe_device(config.device.device)),
        engine={field: resolved[field] for field in _TIMED_BY},
        errors={regime: asdict(error) for regime, error in errors.items()} | {"repeat": _repeat_error(observed[:-1])},
        validity=Validity(
            max_num_seqs=max(shape.num_decodes + len(shape.prefills) for shape in shapes),
            max_step_tokens=max(shape.num_tokens for shape in shapes),
            max_kv_tokens=max(int(shape.decode_kv_tokens) + sum(map(sum, shape.prefills)) for shape in shapes),
        ),
        provenance={
            **provenance,
            "num_loads": len(timed),
            "num_steps": len(shapes),
            "num_repeats": num_repeats,
            "overhead_share": _overhead_share(observed[:-1]),
        },
    )


def _loads_for(resolved: ResolvedConfig) -> list[DesignedLoad]:
    scheduler = resolved.config.scheduler
    return design_loads(
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        num_kv_tokens=(resolved.num_blocks - 1) * resolved.config.cache.block_size,
    )


def _observe_interleaved(
    target: EmbeddedTarget,
    loads: Sequence[DesignedLoad],
    num_repeats: int,
    report: Callable[[str], None],
    after_repeat: Callable[[EmbeddedTarget], None],
) -> list[list[ObservedLoad]]:
    """[load][repeat]; every repeat goes through all loads in an order of its own, so that what slows the machine for a
    while does not hit one load alone."""
    workloads = [load.workload(target.limits) for load in loads]
    runs: list[list[ObservedLoad]] = [[] for _ in loads]
    for repeat in range(num_repeats):
        order = np.random.default_rng(repeat).permutation(len(loads))
        for done, index in enumerate(order.tolist()):
            report(f"repeat {repeat + 1} of {num_repeats}: load {done + 1} of {len(loads)} ({loads[index].name})")
            runs[index].append(observe(target, workloads[index]))
        after_repeat(target)
    return runs


def _median_load(runs: Sequence[ObservedLoad]) -> TimedLoad:
    """The steps' median times over the repeats that took the same steps."""
    alike = [run for run in runs if run.shapes == runs[0].shapes]
    return TimedLoad(
        shapes=runs[0].shapes,
        seconds=np.median([run.period_s for run in alike], axis=0),
        is_saturated=runs[0].is_saturated,
    )


def _wake_s(cost: MachineCost, idle: TimedLoad, runs: Sequence[ObservedLoad]) -> float:
    """Arrival to first token after a pause, less the step that the fit predicts."""
    shape = idle.shapes[0]
    predicted = cost.step_s(shape)
    waits = []
    for run in runs:
        requests = run.record.requests
        first = requests.token_times_s[requests.token_offsets[:-1]]
        waits.append(np.median(first - requests.arrival_s))
    return max(float(np.median(waits)) - predicted, 0.0)


def _repeat_error(observed: Sequence[Sequence[ObservedLoad]]) -> dict[str, float]:
    """How far one repeat is from another: no prediction can be held to less."""
    steps, totals = [], []
    for runs in observed:
        for one, other in itertools.pairwise(runs):
            if one.shapes == other.shapes:
                steps.append(np.abs(one.period_s / other.period_s - 1.0))
                totals.append(abs(float(one.period_s.sum() / other.period_s.sum()) - 1.0))
    if not steps:
        return {}
    errors = np.concatenate(steps)
    return {
        "median": round(float(np.median(errors)), 4),
        "p90": round(float(np.quantile(errors, 0.9)), 4),
        "total": round(float(np.median(totals)), 4),
        "num_steps": len(errors),
    }


def _overhead_share(observed: Sequence[Sequence[ObservedLoad]]) -> float:
    """Share of the time that passed outside of planning and computing: update, bookkeeping, the load's own loop."""
    periods = sum(float(run.period_s.sum()) for runs in observed for run in runs)
    inside = sum(float(run.executor_s.sum()) for runs in observed for run in runs)
    return round(1.0 - inside / periods, 4)
