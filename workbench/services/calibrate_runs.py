"""Calibrate from outside: adjust the catalogue's prediction until simulated runs have the latencies of real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.catalog import find_gpu
from engine.config import EngineConfig
from engine.executor.cost_model.calibrated import Adjustment
from engine.executor.cost_model.calibration_profile import CalibrationProfile, Validity
from engine.simulation import SimulatedDevice, with_gpu_defaults
from workbench.loadgen.simulated import SimulatedTarget
from workbench.metrics.definitions import tpot_s, ttft_s
from workbench.metrics.records import FloatArray, RunRecord
from workbench.scenario import Scenario, ScenarioError
from workbench.store.runs import RUN_FILE, load_run
from workbench.workload import generate_workload
from workbench.workload.account import ImportAccount

_PERCENTS = (10, 25, 50, 75, 90)
_SHRINKAGE = 0.1
"""Weight of staying with the catalogue: a factor e away costs as much as an error of 10 % in every percentile."""
_LOADS = ((1, 12), (4, 24), (16, 48), (48, 96))
"""(users, requests) of the loads that an endpoint is asked to bear: alone, a few, many, near saturation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A real run and what was asked for."""

    scenario: Scenario
    seed: int
    record: RunRecord


def read_runs(directory: Path) -> list[MeasuredRun]:
    """The run in `directory`, or all runs below it. Raises `StoreError` or `ScenarioError`."""
    own = [directory] if (directory / RUN_FILE).is_file() else sorted(p.parent for p in directory.glob(f"*/{RUN_FILE}"))
    runs = []
    for path in own:
        stored = load_run(path)
        if stored.record.clock != "wall":
            raise ScenarioError(f"{path}: was simulated itself. Calibrate on runs of an endpoint or an embedded engine")
        scenario = Scenario.model_validate(stored.info.scenario)
        runs.append(MeasuredRun(scenario=scenario, seed=stored.info.seed, record=stored.record))
    return runs


def run_endpoint(url: str, model: str, report: Callable[[str], None]) -> list[MeasuredRun]:
    """Put chosen loads on a server: a few minutes, seen from outside only. Raises `ConfigError` or `RunFailed`."""
    from workbench.services.evaluate import run_scenario

    runs = []
    for users, num in _LOADS:
        report(f"{users} users, {num} requests on {url}")
        scenario = Scenario.model_validate(
            {
                "name": f"calibration-{users}",
                "seed": users,
                "model": model,
                "target": {"kind": "endpoint", "url": url},
                "workload": {
                    "num_requests": num,
                    "arrivals": {"kind": "closed_loop", "concurrency": users},
                    "classes": [
                        {"name": "short", "input_tokens": {"kind": "uniform", "low": 32, "high": 256},
                         "output_tokens": {"kind": "uniform", "low": 32, "high": 96}},
                        {"name": "long", "input_tokens": {"kind": "uniform", "low": 400, "high": 1200},
                         "output_tokens": {"kind": "uniform", "low": 16, "high": 48}},
                    ],
                },
            }
        )  # fmt: skip
        result = run_scenario(scenario)
        runs.append(MeasuredRun(scenario=scenario, seed=result.seed, record=result.record))
    return runs


def calibrate_runs(
    runs: Sequence[MeasuredRun], *, gpu: str, model: str | None, tensor_parallel_size: int, name: str,
    provenance: Mapping[str, Any],
) -> CalibrationProfile:  # fmt: skip
    """Fit factors and overheads, shrunk towards the catalogue; the error is that of each run with the others' fit.

    Raises `ScenarioError` where there is nothing to fit, `ConfigError` for an unknown GPU or model.
    """
    usable = [run for run in runs if np.isfinite(ttft_s(run.record.requests)).sum() >= 2]
    if not usable:
        raise ScenarioError("no run has two requests with tokens. Run a scenario first: `workbench run SCENARIO`")
    model = model or usable[0].scenario.model
    device = SimulatedDevice.of(gpu, tensor_parallel_size=tensor_parallel_size)
    fits = [_Fit(run, model, device) for run in usable]
    solution = _solve(fits)
    return CalibrationProfile(
        kind="adjusted",
        name=name,
        model=model,
        gpu=find_gpu(gpu).id,
        tensor_parallel_size=tensor_parallel_size,
        adjustment=_adjustment(solution),
        request_s=float(solution[3]) * 1e-3,
        delay_s=float(solution[4]) * 1e-3,
        errors=_errors(fits, solution),
        validity=Validity(max_num_seqs=max(_peak_concurrency(run.record) for run in usable)),
        provenance={
            **provenance,
            "num_runs": len(usable),
            "held_out": len(usable) > 1,
            "requests": _account(runs, usable).to_dict(),
        },
    )


def _account(runs: Sequence[MeasuredRun], usable: Sequence[MeasuredRun]) -> ImportAccount:
    """Requests of the runs: those with a first token are fitted."""
    total = ImportAccount(read=0, used=0)
    for run in runs:
        table, has_token = run.record.requests, np.isfinite(ttft_s(run.record.requests))
        part = ImportAccount(read=len(table), used=len(table))
        part = part.without(int(np.count_nonzero(~has_token)), "without a first token")
        total += part if any(run is each for each in usable) else part.without(part.used, "in a run with too few")
    return total


class _Fit:
    """One run, and how its simulation differs from it under an adjustment."""

    def __init__(self, run: MeasuredRun, model: str, device: SimulatedDevice) -> None:
        values = with_gpu_defaults({**run.scenario.engine, "model": model}, device.gpu)
        self._config, self._device = EngineConfig.from_dict(values), device
        self._workload = generate_workload(run.scenario, SimulatedTarget(self._config, device).limits, seed=run.seed)
        self._record = run.record
        self._measured = _percentiles(run.record)
        self.num_users = _peak_concurrency(run.record)

    def errors(self, x: FloatArray) -> dict[str, FloatArray]:
        """Metric -> log(predicted / measured) of its percentiles."""
        predicted = _percentiles(self._simulated(x))
        return {name: np.log(predicted[name] / self._measured[name]) for name in predicted}

    def excess_ms(self, x: FloatArray) -> float:
        """Milliseconds by which the first tokens come later than predicted, in the middle of all requests."""
        late = ttft_s(self._record.requests), ttft_s(self._simulated(x).requests)
        return 1e3 * float(np.nanmedian(late[0]) - np.nanmedian(late[1]))

    def _simulated(self, x: FloatArray) -> RunRecord:
        profile = CalibrationProfile(
            kind="adjusted",
            name="fit",
            adjustment=_adjustment(x),
            request_s=float(x[3]) * 1e-3,
            delay_s=float(x[4]) * 1e-3,
        )
        return SimulatedTarget(self._config, self._device, profile).run(self._workload)


def _solve(fits: Sequence[_Fit], near: FloatArray | None = None) -> FloatArray:
    """(log prefill factor, log decode factor, step ms, request ms, delay ms); `near` is where to start, if known.

    The delay starts as what the calmest run's first tokens come late by: there it is no queue.
    """
    from scipy.optimize import least_squares

    start = np.array([0.0, 0.0, 0.05, 3.0, 1.0]) if near is None else near
    if near is None:
        calmest = min(fits, key=lambda fit: fit.num_users)
        start[4] = max(1.0, 1.0 + calmest.excess_ms(start))

    def residuals(x: FloatArray) -> FloatArray:
        parts = [part for fit in fits for part in fit.errors(x).values()]
        errors = np.concatenate(parts)
        away = np.array([x[0], x[1], x[2] / 5.0, np.log((x[3] + 0.1) / 3.1), x[4] / 500.0])
        shrinkage = _SHRINKAGE * np.sqrt(len(errors)) * away
        return np.concatenate([errors[np.isfinite(errors)], shrinkage])

    found = least_squares(
        residuals,
        np.clip(start, [-1.49, -1.49, 0.001, 0.001, 0.001], [1.49, 1.49, 49.0, 99.0, 9999.0]),
        bounds=([-1.5, -1.5, 0.0, 0.0, 0.0], [1.5, 1.5, 50.0, 100.0, 10_000.0]),
        diff_step=[0.02] * 5,  # steps are discrete: tiny differences would not move any token across one
        x_scale=[0.1, 0.1, 0.3, 1.0, 3.0],
        loss="soft_l1",
        f_scale=0.2,
        max_nfev=12 if near is None else 3,
    )
    return np.asarray(found.x, dtype=np.float64)


def _adjustment(x: FloatArray) -> Adjustment:
    return Adjustment(prefill_factor=float(np.exp(x[0])), decode_factor=float(np.exp(x[1])), step_s=float(x[2]) * 1e-3)


def _errors(fits: Sequence[_Fit], solution: FloatArray) -> dict[str, dict[str, float]]:
    found: dict[str, list[FloatArray]] = {"ttft": [], "tpot": []}
    for i, fit in enumerate(fits):
        others = [other for j, other in enumerate(fits) if j != i]
        for name, errors in fit.errors(_solve(others, solution) if others else solution).items():
            found[name].append(np.abs(np.expm1(errors[np.isfinite(errors)])))
    bands = {}
    for name, parts in found.items():
        values = np.concatenate(parts)
        if len(values):
            median, p90 = float(np.median(values)), float(np.quantile(values, 0.9))
            bands[name] = {"median": round(median, 4), "p90": round(p90, 4)}
    return bands


def _percentiles(record: RunRecord) -> dict[str, FloatArray]:
    """TTFT of the shorter and of the longer prompts, which tells a constant from a slower prefill; TPOT of all."""
    table = record.requests
    first, is_long = ttft_s(table), table.num_prompt_tokens > np.median(table.num_prompt_tokens)
    parts = [first[~is_long], first[is_long]] if is_long.any() else [first]
    return {"ttft": np.concatenate([_spread(part) for part in parts]), "tpot": _spread(tpot_s(table))}


def _spread(values: FloatArray) -> FloatArray:
    return np.nanpercentile(values, _PERCENTS) if np.isfinite(values).any() else np.full(len(_PERCENTS), np.nan)


def _peak_concurrency(record: RunRecord) -> int:
    """Most requests open at once, as the client saw them."""
    table = record.requests
    has_token = np.diff(table.token_offsets) > 0
    if not has_token.any():
        return 1
    starts = np.sort(table.sent_s[has_token])
    ends = np.sort(table.token_times_s[table.token_offsets[1:][has_token] - 1])
    return int(max((starts <= moment).sum() - (ends < moment).sum() for moment in starts))
