"""Simulate published benchmark runs and say how far off the figures are, in vLLM's metric dialect.

Each row of the table names a model, a GPU and a load; the workload and the engine are built from it as its vLLM
version would have been started. What cannot be built is named with its reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.executor.cost_model.step import Overheads
from engine.simulation import SimulatedDevice, find_simulated_spec, with_gpu_defaults
from workbench.loadgen.errors import RunFailed
from workbench.loadgen.simulated import SimulatedTarget
from workbench.metrics.dialects import vllm
from workbench.metrics.records import RunRecord
from workbench.scenario import Scenario, ScenarioError
from workbench.workload import generate_workload

_STATISTICS = ("mean", "p50", "p99")
_RATES = {
    "duration_s": "duration_s",
    "req_s": "request_throughput",
    "output_tok_s": "output_throughput",
    "total_tok_s": "total_token_throughput",
}
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2e": "e2el_ms"}
METRICS = (*_RATES, *(f"{name}_{statistic}_ms" for name in _LATENCIES for statistic in _STATISTICS))
"""Columns that can be compared."""
_SHAREGPT_CV = {"input": 1.2, "output": 0.9}
_MOST_PROMPTS = 2000
"""Longer runs of a stationary load are cut to this many requests."""


class NotBuildable(Exception):
    """A row that cannot be simulated; the message says why."""


def evaluate_e2e(path: Path) -> dict[str, Any]:
    """`{"rows": [{"id", "predicted", "errors", "reason"}]}`; errors are predicted / published - 1.

    Raises `ScenarioError` for a file that is no table of runs.
    """
    return {"rows": list(evaluate_rows(read_rows(path)))}


def evaluate_rows(rows: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        try:
            predicted = predict_row(row)
        except NotBuildable as reason:
            yield {"id": row["id"], "predicted": {}, "errors": {}, "reason": str(reason)}
            continue
        errors = {}
        for name, value in predicted.items():
            published = _number(row, name)
            if published and value is not None:
                errors[name] = value / published - 1.0
        yield {"id": row["id"], "predicted": predicted, "errors": errors, "reason": None}


def predict_row(row: Mapping[str, str], device: SimulatedDevice | None = None) -> dict[str, float | None]:
    """All figures of one row. Raises `NotBuildable`. `device` replaces what the row names (calibration)."""
    if row.get("engine", "vllm").lower() != "vllm":
        raise NotBuildable(f"engine {row['engine']} is not vLLM")
    if (_number(row, "pp") or 1) > 1:
        raise NotBuildable("pipeline parallelism is not simulated")
    try:
        device = device or device_of(row)
        scenario = scenario_of(row, device)
        target = SimulatedTarget(EngineConfig.from_dict({"model": scenario.model, **scenario.engine}), device)
        workload = generate_workload(scenario, target.limits)
        record = target.run(workload)
    except (EngineError, ScenarioError, RunFailed) as error:
        raise NotBuildable(str(error).splitlines()[0]) from error
    return vllm_figures(record)


def device_of(row: Mapping[str, str]) -> SimulatedDevice:
    """GPU, tensor parallel size and precision of a row."""
    weights = row.get("weights_dtype", "").lower()
    quantisation = next((kind for key, kind in _QUANTISATIONS.items() if weights.startswith(key)), None)
    kv = "fp8" if row.get("kv_dtype", "").lower().startswith("fp8") else None
    device = SimulatedDevice.of(
        row["gpu"], tensor_parallel_size=int(_number(row, "tp") or 1), quantization=quantisation, kv_cache_dtype=kv
    )
    return replace(device, overheads=overheads_of(row))


def overheads_of(row: Mapping[str, str]) -> Overheads:
    """Overheads of the row's vLLM generation and client."""
    version = _version(row.get("engine_version", ""))
    generation = next(values for limit, values in _GENERATIONS if version < limit)
    # Chat endpoints sample by the model's own generation_config; random benchmarks are greedy.
    note = (row.get("bench_note") or "").lower()
    chat = "chat" in note or "aiperf" in note or "sharegpt" in (row.get("dataset") or "").lower()
    sorts = chat and any(name in row["model"].lower() for name in ("qwen3", "deepseek", "qwq", "qwen2.5"))
    return replace(
        generation,
        sorts_logits=sorts and version >= (0, 8),
        request_ms=20.0 if "chat" in note else generation.request_ms,
    )


_GENERATIONS: tuple[tuple[tuple[int, int], Overheads], ...] = (
    ((0, 8), Overheads(layer_us=60.0, step_us=1500.0, sequence_us=20.0, is_async=False)),
    ((0, 12), Overheads(layer_us=14.0, step_us=600.0, sequence_us=6.0, is_async=False)),
    ((10**6, 0), Overheads()),
)


_QUANTISATIONS = {"fp8": "fp8", "int8": "int8", "w8a8": "int8", "awq": "int4", "gptq4": "int4", "gptq": "int4",
                  "int4": "int4", "w4a16": "int4"}  # fmt: skip


def scenario_of(row: Mapping[str, str], device: SimulatedDevice) -> Scenario:
    """The row's load and engine as a scenario."""
    concurrency = _number(row, "max_concurrency")
    rate = row.get("request_rate", "inf").strip().lower()
    count = int(_number(row, "num_prompts") or (10 * concurrency if concurrency else 200))
    arrivals: dict[str, Any]
    if rate == "single":
        arrivals, count = {"kind": "closed_loop", "concurrency": 1}, min(count, 4)
    elif rate in ("inf", ""):
        if concurrency and concurrency < count:
            arrivals = {"kind": "closed_loop", "concurrency": int(concurrency)}
            count = min(count, max(_MOST_PROMPTS, int(4 * concurrency)))
        else:
            arrivals = {"kind": "all_at_once"}
    else:
        arrivals = {"kind": "poisson", "rate": float(rate)}
    model = row["model"]
    window = find_simulated_spec(model).max_position
    kind = {
        "name": "all",
        "input_tokens": _length(row, "input", window),
        "output_tokens": _length(row, "output", window),
    }
    return Scenario.model_validate(
        {
            "name": "published-run",
            "seed": 1,
            "model": model,
            "engine": engine_of(row, device, concurrency, window),
            "workload": {"num_requests": count, "arrivals": arrivals, "classes": [kind], "over_long": "clip"},
        }
    )


def engine_of(
    row: Mapping[str, str], device: SimulatedDevice, concurrency: float | None, window: int
) -> dict[str, Any]:
    """Engine parameters: what the row states, else the defaults of its vLLM version."""
    stated = dict(_stated_options(row.get("engine_args", "") or "", concurrency))
    version = _version(row.get("engine_version", ""))
    values: dict[str, Any]
    length = stated.get("max_model_len", window)
    if version < (0, 8) and length > 32768:
        # Those versions chunked prompts by themselves where the window was long.
        values = {"gpu_memory_utilization": 0.9, "max_num_seqs": 256, "max_num_batched_tokens": 512}
        values |= {"enable_prefix_caching": False, "async_scheduling": False}
    elif version < (0, 8):
        values = {"gpu_memory_utilization": 0.9, "max_num_seqs": 256, "max_num_batched_tokens": max(window, 2048)}
        values |= {"enable_chunked_prefill": False, "enable_prefix_caching": False, "async_scheduling": False}
    else:
        values = {"gpu_memory_utilization": 0.92 if version >= (0, 20) else 0.9, "async_scheduling": version >= (0, 12)}
        values["enable_prefix_caching"] = False  # prompts are random: nothing would hit
    values |= stated
    if not values.get("enable_chunked_prefill", True):
        longest = values.get("max_model_len", window)
        values["max_num_batched_tokens"] = max(values.get("max_num_batched_tokens", 0), longest)
    values = with_gpu_defaults(values, device.gpu)
    values.setdefault("max_model_len", _needed_len(row, window))
    values["max_num_batched_tokens"] = max(values["max_num_batched_tokens"], values["max_num_seqs"])
    return values


def _needed_len(row: Mapping[str, str], window: int) -> int:
    """vLLM would take the model's whole window; where that does not fit, benchmarks shortened it. The scheduler decides
    the same for any length that holds every request."""
    longest = ((_number(row, "input_len") or 1) + (_number(row, "output_len") or 1)) * 4
    return int(min(window, max(longest, 8192)))


def _stated_options(text: str, concurrency: float | None) -> Iterator[tuple[str, Any]]:
    if concurrency:
        text = text.replace("CONC", str(int(concurrency)))
    names = {"max-num-seqs": int, "max-num-batched-tokens": int, "max-model-len": int, "gpu-memory-utilization": float,
             "block-size": int}  # fmt: skip
    for name, kind in names.items():
        match = re.search(rf"(?:--)?{name}[ =]+([\d.]+)", text.replace("_", "-"))
        if match:
            yield name.replace("-", "_"), kind(match[1])
    flat = text.replace("_", "-")
    if re.search(r"--async-scheduling", flat):
        yield "async_scheduling", True
    if re.search(r"--enforce-eager(?!=?\s*false)", flat, re.IGNORECASE):
        yield "enforce_eager", True


def _length(row: Mapping[str, str], side: str, window: int) -> dict[str, Any]:
    mean = _number(row, f"{side}_len")
    if mean is None:
        raise NotBuildable(f"{side}_len is not published")
    kind = (row.get("len_dist") or "").lower()
    if "uniform[0.8l" in kind:
        return {"kind": "uniform", "low": max(int(0.8 * mean), 1), "high": max(int(mean), 1)}
    if "sharegpt" in kind or "sharegpt" in (row.get("dataset") or "").lower():
        cv = _SHAREGPT_CV[side]
        sigma = float(np.sqrt(np.log(1 + cv**2)))
        median = mean / float(np.exp(sigma**2 / 2))
        return {"kind": "lognormal", "median": median, "sigma": sigma, "min": 1, "max": window // 2 - 1}
    return {"kind": "constant", "value": max(round(mean), 1)}


def vllm_figures(record: RunRecord) -> dict[str, float | None]:
    """The figures that `vllm bench serve` prints, by column name."""
    report = {name: figure.to_json() for name, figure in vllm(record).items()}
    figures = {column: report[name] for column, name in _RATES.items()}
    for column, name in _LATENCIES.items():
        for statistic in _STATISTICS:
            figures[f"{column}_{statistic}_ms"] = report[name][statistic]
    return figures if report["num_completed"] else dict.fromkeys(METRICS)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Raises `ScenarioError` for a file that is no table of runs."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"{path}: cannot be read as CSV ({error})") from error
    missing = [name for name in ("id", "model", "gpu") if not rows or name not in rows[0]]
    if missing:
        raise ScenarioError(f"{path}: is no table of published runs: column {missing[0]} is missing")
    return rows


def _version(text: str) -> tuple[int, int]:
    """(major, minor); unknown versions count as current."""
    match = re.search(r"v?(\d+)\.(\d+)", text or "")
    if match is None:
        return (0, 6) if text.startswith("2024") else (0, 11)
    return (int(match[1]), int(match[2])) if int(match[1]) < 100 else (0, 11)


def _number(row: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(row.get(name) or "")
    except ValueError:
        return None
    return value if np.isfinite(value) else None
