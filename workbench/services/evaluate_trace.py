"""Replay a per-request trace of a real server on the simulated device, uncalibrated or calibrated on its beginning."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.executor.cost_model.calibrated import Adjustment
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.simulation import SimulatedDevice, build_simulation, with_gpu_defaults
from workbench.metrics.records import FloatArray
from workbench.scenario import ScenarioError
from workbench.workload.account import ImportAccount
from workbench.workload.traces.table import Ledger, account_of
from workbench.workload.traces.units import UNIT_SECONDS, infer_unit

_COLUMNS = ("arrived_at", "input_toks", "output_toks", "first_token_ts", "last_token_ts")
_MOST_TOKENS = 10_000_000
_PERCENTS = (50, 90, 95, 99)
_CACHES = (0.7, 0.8, 0.9, 1.1, 1.2, 1.3)
"""Sizes of the KV cache, against the predicted one, that the fit tries beside that."""
_SHRINKAGE = 0.02
"""Weight of staying with the catalogue, against the error of the calibration rows: a factor e costs as much as this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Columns of length n, in order of arrival; times in seconds."""

    arrived_s: FloatArray
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    requests: ImportAccount
    problems: tuple[str, ...]
    """One line for each kind of row that was skipped, with line numbers, and for times in another unit than seconds."""


def evaluate_trace(path: Path, meta: Path, calibrate_fraction: float = 0.0) -> dict[str, Any]:
    """Predicted and measured percentiles of TTFT, TPOT and E2EL, over the rows that were not used to calibrate.

    Raises `ScenarioError` for files that are no trace.
    """
    if not 0.0 <= calibrate_fraction < 1.0:
        raise ScenarioError(f"--calibrate-fraction: must be at least 0 and under 1 (got {calibrate_fraction})")
    trace, facts = read_trace(path), _read_meta(meta)
    simulate = _simulator(trace, facts, path)
    count = int(len(trace.arrived_s) * calibrate_fraction)
    adjustment, cache = _calibrate(trace, simulate, count) if count else (Adjustment(), 1.0)
    first, last = simulate(adjustment, cache, len(trace.arrived_s))
    held_out = slice(count, None)
    return {
        "rows": len(trace.arrived_s),
        "requests": trace.requests.to_dict(),
        "problems": list(trace.problems),
        "calibrated_on": count,
        "adjustment": {**asdict(adjustment), "kv_cache_factor": cache},
        "metrics": {
            name: _compare(predicted[held_out], measured[held_out])
            for name, predicted, measured in (
                ("ttft_s", first - trace.arrived_s, trace.first_s - trace.arrived_s),
                ("tpot_s", _tpot(trace, first, last), _tpot(trace, trace.first_s, trace.last_s)),
                ("e2el_s", last - trace.arrived_s, trace.last_s - trace.arrived_s),
            )
        },
    }


def read_trace(path: Path) -> Trace:
    """Return the rows in order of arrival; those that no server can have answered are skipped, and counted.

    Raises `ScenarioError` for a file without two rows that can be used.
    """
    ledger, rows = Ledger(), []
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ScenarioError(f"{path}: is not a per-request trace: column {missing[0]!r} is missing")
            for cells in reader:
                ledger.num_read += 1
                row = _numbers(cells)
                fault = _fault(row)
                if fault is None:
                    rows.append(row)
                else:
                    ledger.add(fault, "dropped", [reader.line_num])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"{path}: cannot be read as a per-request trace ({error})") from error
    problems = tuple(problem.describe() for problem in ledger.problems())
    if len(rows) < 2:
        raise ScenarioError(
            f"{path}: needs at least two rows that can be used (got {len(rows)} of {ledger.num_read}). "
            + "; ".join(problems)
        )
    columns = np.array(rows, dtype=np.float64)
    unit = infer_unit(columns[:, 0].tolist(), "s")
    if unit.unit != "s":
        columns[:, [0, 3, 4]] *= UNIT_SECONDS[unit.unit]
        problems += (unit.sentence,)
    columns = columns[np.argsort(columns[:, 0], kind="stable")]
    return Trace(
        requests=account_of(ledger.num_read, len(rows), ledger.problems()),
        problems=problems,
        arrived_s=columns[:, 0],
        prompt_tokens=columns[:, 1],
        output_tokens=columns[:, 2],
        first_s=columns[:, 3],
        last_s=columns[:, 4],
    )


def _numbers(cells: Mapping[str, str | None]) -> list[float]:
    """The row's columns; NaN where a cell is not a number."""
    found = []
    for name in _COLUMNS:
        try:
            found.append(float(cells[name] or "nan"))
        except ValueError:
            found.append(math.nan)
    return found


def _fault(row: Sequence[float]) -> str | None:
    """Return why no server can have answered so; None where one can."""
    arrived_s, prompt, output, first_s, last_s = row
    for name, value in zip(_COLUMNS, row, strict=True):
        if not math.isfinite(value):
            return f"{name} is not a finite number"
    if not (1 <= prompt <= _MOST_TOKENS and 1 <= output <= _MOST_TOKENS):
        return f"input_toks or output_toks is not from 1 to {_MOST_TOKENS}"
    if first_s < arrived_s:
        return "the first token came before its request arrived (two clocks in one row?)"
    return "the last token came before the first" if last_s < first_s else None


Simulate = Callable[[Adjustment, float, int], tuple[FloatArray, FloatArray]]
"""(adjustment, size of the KV cache against the predicted one, number of leading requests that matter) -> (time of the
first token, time of the last token)."""


def _simulator(trace: Trace, facts: Mapping[str, Any], path: Path) -> Simulate:
    options = dict(facts.get("engine_kwargs") or {})
    gpu = facts.get("hardware") or facts.get("gpu") or path.stem.split("_")[0]
    ranks = options.get("tensor_parallel_size") or 1
    if not isinstance(ranks, int):
        raise ScenarioError(f"{path}: the meta file's tensor_parallel_size must be a whole number (got {ranks!r})")
    is_fp8 = str(options.get("kv_cache_dtype")).startswith("fp8")
    device = SimulatedDevice.of(
        str(gpu),
        tensor_parallel_size=ranks,
        quantization=options.get("quantization"),
        kv_cache_dtype="fp8" if is_fp8 else None,
    )
    version = tuple(map(int, re.findall(r"\d+", str(facts.get("vllm_version") or ""))[:2]))
    device = replace(device, budgets_graphs=not version or version >= (0, 21))
    known = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "gpu_memory_utilization")
    values = {name: options[name] for name in known if options.get(name) is not None}
    if version and version < (0, 20):
        values.setdefault("gpu_memory_utilization", 0.9)
    values["num_blocks"] = _num_blocks(facts.get("kv_cache"))
    values["model"] = options.get("model") or facts.get("model")
    if values["model"] is None:
        raise ScenarioError(f"{path}: the meta file names no model (engine_kwargs.model)")
    values["enable_prefix_caching"] = False  # the trace does not say which prompts were alike
    config = EngineConfig.from_dict(with_gpu_defaults(values, device.gpu))
    predicted = build_simulation(config, device)
    cost, num_blocks = predicted.cost, predicted.resolved.num_blocks

    def simulate(adjustment: Adjustment, cache: float, num_needed: int) -> tuple[FloatArray, FloatArray]:
        resized = config.replaced(num_blocks=round(cache * num_blocks)) if cache != 1.0 else config
        simulation = build_simulation(resized, device, adjustment=adjustment, cost=cost)
        core, clock = simulation.core, simulation.clock
        count = len(trace.arrived_s)
        first, last = np.full(count, np.nan), np.full(count, np.nan)
        sent, needed = 0, set(range(num_needed))
        while needed:
            while sent < count and trace.arrived_s[sent] <= clock.now():
                params = SamplingParams(max_tokens=max(int(trace.output_tokens[sent]), 1), ignore_eos=True)
                prompt = [0] * max(int(trace.prompt_tokens[sent]), 1)
                core.add_request(Request(str(sent), prompt, params, arrival_time_s=float(trace.arrived_s[sent])))
                sent += 1
            if not core.has_unfinished():
                clock.sleep_until(float(trace.arrived_s[sent]))
                continue
            for output in core.step(float(trace.arrived_s[sent]) if sent < count else math.inf):
                row, count_new = int(output.request_id), len(output.new_token_ids)
                if count_new:  # the core may have taken several steps
                    if np.isnan(first[row]):
                        first[row] = core.step_stats.end_s(output.first_step)
                    last[row] = core.step_stats.end_s(output.first_step + count_new - 1)
                if output.finish_reason is not None:
                    needed.discard(row)
        return first, last

    return simulate


def _num_blocks(stated: Any) -> int | None:
    """The size of the KV cache as the server printed it, where the meta file has it."""
    value = stated.get("num_gpu_blocks") if isinstance(stated, Mapping) else None
    return value if isinstance(value, int) and value > 1 else None


def _calibrate(trace: Trace, simulate: Simulate, count: int) -> tuple[Adjustment, float]:
    """Fit the first `count` requests' first and last token times, shrunk towards the catalogue.

    The size of the KV cache is fitted too: in a trace that fills it, it says how many requests share a step.
    """
    from scipy.optimize import least_squares

    rows = slice(0, count)
    measured_ttft = trace.first_s[rows] - trace.arrived_s[rows]
    measured_tpot = _tpot(trace, trace.first_s, trace.last_s)[rows]

    def adjustment(x: FloatArray) -> Adjustment:
        prefill, decode, step = (float(value) - 1.0 for value in x[:3])
        return Adjustment(
            prefill_factor=float(np.exp(prefill)), decode_factor=float(np.exp(decode)), step_s=step * 1e-3
        )

    def residuals(x: FloatArray) -> FloatArray:
        first, last = simulate(adjustment(x), float(x[3]), count)
        ttft = np.log((first[rows] - trace.arrived_s[rows]) / measured_ttft)
        tpot = np.log(_tpot(trace, first, last)[rows] / measured_tpot)
        # Every request's pace counts four times its TTFT, which hangs on where in a step it arrived.
        errors = np.concatenate([0.5 * ttft, 2.0 * tpot])
        return np.concatenate([errors[np.isfinite(errors)], _SHRINKAGE * np.sqrt(count) * (x - 1.0)])

    # Overhead can only be added. Steps are discrete: tiny differences would not move any token across one. `diff_step`
    # is relative, so all are counted from 1.
    def fit(start: FloatArray, reach: float, max_nfev: int) -> Any:
        """`reach`: how far the size of the cache may move from where it starts."""
        return least_squares(
            residuals,
            start,
            bounds=([0.3, 0.3, 1.0, start[3] - reach], [1.7, 1.7, 6.0, start[3] + reach]),
            diff_step=[0.02, 0.02, 0.02, 0.01],
            x_scale=[0.1, 0.1, 0.3, 0.1],
            loss="soft_l1",
            max_nfev=max_nfev,
        )

    # Who waits for blocks changes in jumps, between which a fit gets stuck: sizes are tried on a grid, where the size
    # matters at all, and the two best are looked at closely.
    plain = simulate(Adjustment(), 1.0, count)[1][rows]
    sizes = [size for size in _CACHES if (simulate(Adjustment(), size, count)[1][rows] != plain).any()]
    rough = [fit(np.array([1.0, 1.0, 1.05, size]), 0.02, 8) for size in (1.0, *sizes)]
    close = [fit(each.x, 0.08, 20) for each in sorted(rough, key=_cost)[:2]]
    found = min([*rough, *close], key=_cost)
    return adjustment(found.x), float(found.x[3])


def _cost(fit: Any) -> float:
    return float(fit.cost)


def _tpot(trace: Trace, first: FloatArray, last: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(trace.output_tokens > 1, (last - first) / (trace.output_tokens - 1.0), np.nan)


def _compare(predicted: FloatArray, measured: FloatArray) -> dict[str, dict[str, float]]:
    out = {}
    for percent in _PERCENTS:
        p, m = float(np.nanpercentile(predicted, percent)), float(np.nanpercentile(measured, percent))
        out[f"p{percent}"] = {"predicted": p, "measured": m, "error": p / m - 1.0}
    p, m = float(np.nanmean(predicted)), float(np.nanmean(measured))
    out["mean"] = {"predicted": p, "measured": m, "error": p / m - 1.0}
    return out


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(values, dict) or not isinstance(values.get("engine_kwargs") or {}, dict):
        raise ScenarioError(f"{path}: must hold an object with engine_kwargs")
    return values
