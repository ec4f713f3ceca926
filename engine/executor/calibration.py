"""Fit operator models to measured tables: `python -m engine.executor.calibration TABLES_DIR -o PROFILES_DIR`.

Tables are CSV files in the format of the public operator data (columns gpu, op, dtype or kv_dtype, the shape,
time_us). Each model's error is cross-validated over shapes: all rows of a shape are in the fit or out of it together.
Needs scipy.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.catalog import GpuSpec, find_gpu
from engine.executor.cost_model.collectives import Tables, all_reduce_s, borders, with_borders
from engine.executor.cost_model.operators import (
    Correction,
    FitError,
    OperatorModel,
    OperatorProfile,
    chip_of,
    features_of,
    formula_s,
    save_profile,
)

Array = npt.NDArray[np.float64]
Row = Mapping[str, str]

_BOUNDS: dict[str, tuple[float, float]] = {
    "launch_us": (0.3, 30.0),
    "compute": (0.05, 1.0),
    "memory": (0.1, 1.2),
    "sharpness": (1.02, 8.0),
    "small_tile": (1e-3, 10.0),
    "l2_gain": (1e-3, 10.0),
    "l2_mib": (0.5, 200.0),
    "l2_edge": (1.5, 24.0),
    "short_k": (1e-3, 50.0),
    "quantise": (1e-3, 10.0),
    "row_ns": (1e-2, 50.0),
    "output": (1e-3, 30.0),
    "merge_us": (1e-3, 20.0),
    "position_ns": (0.01, 100.0),
    "small_kv": (0.3, 4.0),
    "small_head": (0.05, 1.0),
    "ramp": (1e-3, 20.0),
}
_TYPICAL_GEMM = {"launch_us": 4.0, "compute": 0.7, "memory": 0.75, "sharpness": 3.5, "small_tile": 0.2, "l2_gain": 2.0,
                 "l2_mib": 10.0, "l2_edge": 5.0, "short_k": 1.0, "quantise": 1.5}  # fmt: skip
_OTHER_GEMMS: tuple[dict[str, float], ...] = (
    {"launch_us": 3.3, "memory": 0.82, "small_tile": 0.37, "l2_gain": 0.14, "l2_edge": 3.0},
    {"launch_us": 5.0, "compute": 0.62, "sharpness": 5.5, "l2_gain": 5.0, "l2_mib": 15.0, "l2_edge": 10.0,
     "short_k": 15.0},
    {"compute": 0.5, "sharpness": 2.6, "small_tile": 1.0, "l2_mib": 20.0, "short_k": 0.4, "quantise": 5.0},
)  # fmt: skip
_STARTS: dict[str, tuple[dict[str, float], ...]] = {
    "gemm/bfloat16": tuple(_TYPICAL_GEMM | other for other in ({}, *_OTHER_GEMMS)),
    "gemm/fp8": tuple(_TYPICAL_GEMM | {"row_ns": 3.0, "output": 0.3} | other for other in ({}, *_OTHER_GEMMS)),
    "decode_attention/bfloat16": (
        {"launch_us": 10.0, "memory": 0.82, "sharpness": 2.6, "merge_us": 0.37, "compute": 0.27, "position_ns": 1.0,
         "l2_gain": 0.14, "l2_mib": 20.0, "l2_edge": 3.0, "small_kv": 1.0},
        {"launch_us": 10.0, "memory": 0.88, "sharpness": 3.7, "merge_us": 1.0, "compute": 0.5, "position_ns": 2.7,
         "l2_gain": 1.0, "l2_mib": 20.0, "l2_edge": 8.0, "small_kv": 1.2},
    ),
    "prefill_attention/bfloat16": (
        {"launch_us": 10.0, "memory": 0.82, "sharpness": 3.0, "compute": 0.62, "ramp": 0.37, "small_kv": 1.0,
         "small_head": 0.7},
        {"launch_us": 12.0, "memory": 0.73, "sharpness": 2.2, "compute": 0.69, "ramp": 1.0, "small_kv": 1.2,
         "small_head": 0.6},
    ),
}  # fmt: skip
"""`KIND/DTYPE` -> where the search for the parameters starts; the first is also what they are pulled to."""
_PULL = 0.2
"""A parameter a factor e away from the typical one costs as much as 20 % of error in one row."""
_SCALES: dict[str, tuple[tuple[float, ...], ...]] = {
    "gemm": tuple(product((1.0, 2.0, 4.0), (1.5, 3.0), (1.5, 3.0), (0.7, 2.0, 9.0))),
    "decode_attention": tuple((a, a, b, b, 2.0, c) for a in (1.5, 2.5, 4.0) for b in (1.0, 2.0) for c in (3.0, 6.0)),
    "prefill_attention": tuple((a, a, b, b, 2.0, c) for a in (1.5, 2.5, 4.0) for b in (1.0, 2.0) for c in (3.0, 6.0)),
}
_NOISES = (0.05, 0.1, 0.3)
_SHAPE = {"gemm": ("n", "k"), "decode_attention": ("batch", "kv_len", "heads", "kv_heads", "head_dim"),
          "prefill_attention": ("batch", "new", "heads", "kv_heads", "head_dim")}  # fmt: skip
_NUM_FOLDS = 6
_LEAST_US = 1e-3
"""Shorter than anything that a GPU does."""
_OUTLIER = 0.1
"""Residuals beyond it (logarithm) count less, in the formula's fit and in the correction's."""
_ROUNDS = 4
"""Of reweighting."""


def columns_of(kind: str, rows: Sequence[Row]) -> dict[str, Array]:
    """Columns of a table in the names that the operator models use."""

    def column(name: str, least: float = 1.0) -> Array:
        return np.array([number_of(row, name, least) for row in rows], dtype=np.float64)

    if kind == "gemm":
        return {name: column(name) for name in ("m", "n", "k")}
    shape = {name: column(name) for name in ("batch", "heads", "kv_heads", "head_dim")}
    small = [row.get("kv_dtype") or row.get("dtype", "") for row in rows]
    shape["kv_bytes"] = np.array([1.0 if name.startswith("fp8") else 2.0 for name in small])
    if kind == "decode_attention":
        return shape | {"kv_len": column("kv_len")}
    if rows and "seq_len" in rows[0]:
        return shape | {"new": column("seq_len"), "cached": np.zeros(len(rows))}
    return shape | {"new": column("chunk"), "cached": column("kv_len", 0.0)}


def number_of(row: Row, name: str, least: float) -> float:
    """A cell. Raises `ValueError` for what is no finite number from `least`."""
    try:
        value = float(row.get(name) or "")
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise ValueError(f"{name}: must be a number from {least:g} (got {row.get(name)!r})")
    return value


def element_bytes(dtype: str) -> float:
    """Of a GEMM operand."""
    return {"fp8": 1.0, "int8": 1.0, "int4": 0.5}.get(dtype, 2.0)


def fit_operator(
    kind: str, dtype: str, columns: Mapping[str, Array], seconds: Array, gpu: GpuSpec, source: str
) -> OperatorModel:
    """Formula parameters by robust least squares on the logarithm, then the correction with cross-validated scales."""
    errors = _left_out_errors(kind, dtype, columns, seconds, gpu)
    best = min(errors, key=lambda trial: 2.5 * np.median(errors[trial]) + np.quantile(errors[trial], 0.9))
    p = _fit_parameters(kind, dtype, columns, seconds, gpu)
    residual = np.log(seconds / _formula(kind, dtype, p, columns, gpu))
    return OperatorModel(
        kind=kind,
        dtype=dtype,
        parameters=p,
        correction=fit_correction(features_of(kind, columns), residual, *best),
        error=FitError(
            median=round(float(np.median(errors[best])), 4),
            p90=round(float(np.quantile(errors[best], 0.9)), 4),
            num_rows=len(seconds),
        ),
        source=source,
    )


def _left_out_errors(
    kind: str, dtype: str, columns: Mapping[str, Array], seconds: Array, gpu: GpuSpec
) -> dict[tuple[tuple[float, ...], float], Array]:
    """(scales, noise) of a correction -> [num_rows] absolute relative errors under fits to the other shapes."""
    folds = _folds(kind, columns)
    errors = {trial: np.empty(len(seconds)) for trial in product(_SCALES[kind], _NOISES)}
    for fold in range(_NUM_FOLDS):
        inside, outside = folds != fold, folds == fold
        if not outside.any():
            continue
        train = {name: values[inside] for name, values in columns.items()}
        test = {name: values[outside] for name, values in columns.items()}
        p = _fit_parameters(kind, dtype, train, seconds[inside], gpu)
        residual = np.log(seconds[inside] / _formula(kind, dtype, p, train, gpu))
        base = _formula(kind, dtype, p, test, gpu)
        for (scales, noise), error in errors.items():
            correction = fit_correction(features_of(kind, train), residual, scales, noise)
            predicted = base * correction.factor(features_of(kind, test))
            error[outside] = np.abs(predicted / seconds[outside] - 1.0)
    return errors


def _formula(kind: str, dtype: str, p: Mapping[str, float], columns: Mapping[str, Array], gpu: GpuSpec) -> Array:
    size = element_bytes(dtype) if kind == "gemm" else 2.0
    return formula_s(kind, p, columns, chip_of(gpu, dtype), size, size)


def _fit_parameters(
    kind: str, dtype: str, columns: Mapping[str, Array], seconds: Array, gpu: GpuSpec
) -> dict[str, float]:
    from scipy.optimize import least_squares

    starts = _STARTS[f"{kind}/{dtype}"]
    names = list(starts[0])
    target, typical = np.log(seconds), np.log(list(starts[0].values()))
    low, high = (np.log([_BOUNDS[name][side] for name in names]) for side in (0, 1))

    def residuals(x: Array) -> Array:
        p = dict(zip(names, np.exp(x).tolist(), strict=True))
        return np.append(np.log(_formula(kind, dtype, p, columns, gpu)) - target, _PULL * (x - typical))

    found = [
        least_squares(
            residuals,
            np.log([start[name] for name in names]),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=_OUTLIER,
            max_nfev=200,
        )
        for start in starts
    ]
    best = min(found, key=lambda each: each.cost)
    return dict(zip(names, np.exp(best.x).tolist(), strict=True))


def fit_correction(features: Array, residual: Array, scales: Sequence[float], noise: float) -> Correction:
    """The Gaussian process through `residual` [num_rows], in which a row far from its neighbours counts less.

    Runs of one shape differ by more than a normal distribution allows (clocks, what lay in a cache).
    """
    scale = np.array(scales, dtype=np.float64)
    x = features / scale
    squares = ((x[:, None, :] - x[None, :, :]) ** 2).sum(-1)
    kernel = np.exp(-0.5 * squares)
    noises = np.full(len(x), noise)
    weights = np.linalg.solve(kernel + np.diag(noises), residual)
    for _ in range(_ROUNDS):
        noises = noise * np.sqrt(1.0 + (noises * weights / _OUTLIER) ** 2)  # noises * weights: what is left unexplained
        weights = np.linalg.solve(kernel + np.diag(noises), residual)
    return Correction(scales=scale, support=features, weights=weights)


def _folds(kind: str, columns: Mapping[str, Array]) -> npt.NDArray[np.int64]:
    """[num] fold of each row: rows of one shape share it."""
    shapes = np.stack([columns[name] for name in _SHAPE[kind]], axis=1)
    unique, inverse = np.unique(shapes, axis=0, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(unique))
    return np.asarray(order[inverse.ravel()] % _NUM_FOLDS, dtype=np.int64)


def fit_profile(tables: Path, gpu_key: str) -> OperatorProfile:
    """The profile of one GPU from `gemm_`, `decode_attention_`, `prefill_attention_` and `comm_` tables."""
    models: dict[str, OperatorModel] = {}
    kinds = {
        kind: _read(tables / f"{kind}_{gpu_key}.csv") for kind in ("gemm", "decode_attention", "prefill_attention")
    }
    gpu = find_gpu(kinds["gemm"][0]["gpu"])
    for kind, rows in kinds.items():
        groups: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            groups[row["dtype"] if kind == "gemm" else "bfloat16"].append(row)
        for dtype, group in groups.items():
            if dtype not in ("bfloat16", "fp8"):
                continue  # block-scaled formats have tables of their own kernels; reported as not supported
            seconds = np.array([number_of(row, "time_us", _LEAST_US) for row in group]) * 1e-6
            source = (group[0].get("source") or "").split(" wheel ")[0]
            models[f"{kind}/{dtype}"] = fit_operator(kind, dtype, columns_of(kind, group), seconds, gpu, source)
    reduced = _all_reduce_tables(tables / f"comm_{gpu_key}.csv")
    return OperatorProfile(
        gpu_id=gpu.id,
        models=models,
        all_reduce=reduced,
        all_reduce_error=all_reduce_error(reduced, gpu.arch),
        provenance={"tables": f"*_{gpu_key}.csv", "fitted_by": "python -m engine.executor.calibration"},
    )


def _all_reduce_tables(path: Path) -> dict[str, list[tuple[float, float]]]:
    """`KERNEL/NUM_GPUS` -> (message bytes, seconds), ascending; empty where there is no such file."""
    times: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in _read(path) if path.is_file() else []:
        if row["op"] == "all_reduce":
            num_gpus, size = (number_of(row, name, 1.0) for name in ("num_gpus", "message_bytes"))
            seconds = number_of(row, "time_us", _LEAST_US) * 1e-6
            times[f"{row['kernel']}/{num_gpus:.0f}"][size].append(seconds)
    return {
        key: [(size, float(np.median(each))) for size, each in sorted(by_size.items())]
        for key, by_size in times.items()
    }


def all_reduce_error(tables: Tables, arch: str) -> FitError | None:
    """Predict each inner size without any time of that size, as long as its regime has two other sizes."""
    errors = []
    for key, table in tables.items():
        kernel, num_gpus = key.rsplit("/", 1)
        regimes = np.searchsorted(borders(kernel, int(num_gpus), arch), [size for size, _ in table], side="right")
        for regime, (size, measured) in zip(regimes[1:-1], table[1:-1], strict=True):
            if np.count_nonzero(regimes == regime) < 3:
                continue
            others = {name: [pair for pair in each if pair[0] != size] for name, each in tables.items()}
            predicted = all_reduce_s(with_borders(others, arch), kernel, int(num_gpus), size)
            if predicted is not None:
                errors.append(abs(predicted / measured - 1.0))
    if not errors:
        return None
    median, p90 = float(np.median(errors)), float(np.quantile(errors, 0.9))
    return FitError(median=round(median, 4), p90=round(p90, 4), num_rows=len(errors))


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as stream:
        rows: list[Row] = list(csv.DictReader(stream))
    if not rows:
        raise ValueError(f"{path.name}: has no rows")
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.executor.calibration", description="Fit operator profiles.")
    parser.add_argument("tables", type=Path, help="folder of operator tables")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for the profiles")
    args = parser.parse_args(argv)
    for path in sorted(args.tables.glob("gemm_*.csv")):
        profile = fit_profile(args.tables, path.stem.removeprefix("gemm_"))
        save_profile(profile, args.out / f"{profile.gpu_id}.json")
        for name, model in profile.models.items():
            if model.error is not None:
                sys.stdout.write(
                    f"{profile.gpu_id:16} {name:28} median {model.error.median:6.1%}  P90 {model.error.p90:6.1%}  "
                    f"rows {model.error.num_rows}\n"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
