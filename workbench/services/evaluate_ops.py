"""Predict rows of operator tables and say how far off each prediction is."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.catalog import find_gpu
from engine.errors import ConfigError
from engine.executor.calibration import columns_of, element_bytes
from engine.executor.cost_model.collectives import all_reduce_s
from engine.executor.cost_model.operators import chip_of
from engine.executor.cost_model.profiles import profile_for
from workbench.scenario import ScenarioError
from workbench.services.evaluate_cells import Row, number

_DTYPES = {"bfloat16": "bfloat16", "float16": "bfloat16", "half": "bfloat16", "fp16": "bfloat16", "bf16": "bfloat16"}


def evaluate_ops(path: Path) -> dict[str, Any]:
    """`{"rows": [{the row, predicted_us, error}], "median", "p90"}`; error = predicted / measured - 1, null where a
    row is not supported. Raises `ScenarioError` for a file that is no operator table."""
    rows = _read(path)
    predicted: list[float | None] = [None] * len(rows)
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[row["gpu"], row.get("op") or "", row.get("dtype") or row.get("q_dtype") or ""].append(i)
    for (gpu_name, op, dtype), indices in groups.items():
        for i, value in zip(indices, _predict_us(gpu_name, op, dtype, [rows[i] for i in indices]), strict=True):
            predicted[i] = value
    out: list[dict[str, Any]] = []
    errors: list[float] = []
    for row, value in zip(rows, predicted, strict=True):
        measured = _positive(row, "time_us")
        error = None if value is None or not measured else value / measured - 1.0
        if error is not None:
            errors.append(abs(error))
        out.append({**row, "predicted_us": value, "error": error})
    return {
        "rows": out,
        "median": float(np.median(errors)) if errors else None,
        "p90": float(np.quantile(errors, 0.9)) if errors else None,
    }


def _predict_us(gpu_name: str, op: str, dtype: str, rows: Sequence[Row]) -> list[float | None]:
    nothing: list[float | None] = [None] * len(rows)
    try:
        gpu = find_gpu(gpu_name)
        profile = profile_for(gpu)
    except ConfigError:
        return nothing
    if op == "all_reduce":
        return [_all_reduce_us(profile.all_reduce, row) for row in rows]
    kind = {"attention": "prefill_attention"}.get(op, op)
    if kind not in ("gemm", "decode_attention", "prefill_attention"):
        return nothing
    dtype = _DTYPES.get(dtype, dtype)
    if kind == "gemm" and dtype not in ("bfloat16", "fp8"):
        return nothing
    try:
        columns = columns_of(kind, rows)
    except (TypeError, ValueError):  # by itself, such a row costs the others nothing
        return nothing if len(rows) == 1 else [_predict_us(gpu_name, op, dtype, [row])[0] for row in rows]
    model = profile.model(kind, dtype if kind == "gemm" else "bfloat16")
    if dtype == "fp8" and gpu.fp8_flops is None:
        return nothing
    size = element_bytes(dtype) if kind == "gemm" else 2.0
    with np.errstate(all="ignore"):
        seconds = model.predict_s(columns, chip_of(gpu, model.dtype), weight_bytes=size, act_bytes=size)
    return [float(value) * 1e6 if np.isfinite(value) else None for value in seconds]


def _all_reduce_us(tables: Mapping[str, Sequence[tuple[float, float]]], row: Row) -> float | None:
    num_gpus, size = _positive(row, "num_gpus"), _positive(row, "message_bytes")
    if num_gpus is None or size is None or num_gpus % 1:
        return None
    seconds = all_reduce_s(tables, row.get("kernel") or "", int(num_gpus), size)
    return None if seconds is None else seconds * 1e6


def _positive(row: Row, name: str) -> float | None:
    value = number(row, name)
    return value if value is not None and value > 0 else None


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"{path}: cannot be read as CSV ({error})") from error
    if not rows or "gpu" not in rows[0] or "time_us" not in rows[0]:
        found = ", ".join(rows[0]) if rows else "no rows"
        raise ScenarioError(f"{path}: is no operator table: columns gpu and time_us are needed (found {found})")
    return rows
