"""Fit `engine/catalog/end_to_end.csv` to published runs: `python benchmarks/fit_end_to_end.py FILE.csv FAMILY WEIGHTS`.

Least squares on the logarithms of TPOT, output throughput and (less) ITL and TTFT over all rows of one family of GPUs
and one type of weights, robust against outliers and shrunk towards 1. Prints the table's line (but its source) and, by
deployment, the errors of a fit to the other deployments. Takes minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.executor.cost_model.end_to_end import Factors, factors_for, family_of
from engine.simulation import SimulatedDevice
from workbench.services.evaluate_cells import NotBuildable, number
from workbench.services.evaluate_e2e import predict_row, read_rows
from workbench.services.evaluate_row import device_of

Array = npt.NDArray[np.float64]
Row = dict[str, str]
SPREADS = {"few_tokens": 0.25, "compute": 0.3, "few_reduced": 0.3, "many_reduced": 0.3, "decode_attention": 0.2,
           "mixed_attention": 0.3}  # fmt: skip
"""Standard deviation of the logarithm that is taken for granted: the shrinkage."""
WEIGHTS = {"tpot_mean_ms": 1.0, "tpot_p50_ms": 1.0, "itl_p50_ms": 0.6, "output_tok_s": 1.0, "ttft_mean_ms": 0.4,
           "ttft_p50_ms": 0.3}  # fmt: skip
NOISE = 0.08
"""Errors well above this count less than by their square."""
FOLDS = 3


def factors_of(device: SimulatedDevice, logs: Array) -> Factors:
    """The fitted factors beside `overlap`, which is chosen."""
    overlap = factors_for(device.gpu, device.precision.weights, device.precision.kv).overlap
    return Factors(overlap=overlap, **{name: float(np.exp(log)) for name, log in zip(SPREADS, logs, strict=True)})


def errors_of(row: Row, logs: Array) -> dict[str, float]:
    """Of the figures that are fitted, predicted / published - 1."""
    device = device_of(row)
    try:
        predicted = predict_row(row, replace(device, factors=factors_of(device, logs)))
    except NotBuildable:
        return {}
    errors = {}
    for name in WEIGHTS:
        published, value = number(row, name), predicted[name]
        if published and value is not None and not (name == "tpot_p50_ms" and row["tpot_mean_ms"]):
            errors[name] = value / published - 1.0
    return errors


def residuals(rows: list[Row], logs: Array) -> Array:
    """Weighted logarithms of predicted / published."""
    return np.array(
        [
            WEIGHTS[name] * np.clip(np.log1p(error), -1.0, 1.0)
            for row in rows
            for name, error in errors_of(row, logs).items()
        ]
    )


def spreads_for(rows: list[Row]) -> Array:
    """Among GPUs without peer access, runs have several GPUs each and cannot tell weights from communication: linear
    layers, whose operators were measured, stay close to 1; the all-reduce, which was not, may move."""
    spreads = dict(SPREADS)
    if all(family_of(device_of(row).gpu).endswith("/alone") for row in rows):
        spreads |= {"few_tokens": 0.03, "compute": 0.03, "few_reduced": 0.8, "many_reduced": 0.8}
    return np.array(list(spreads.values()))


def fit(rows: list[Row], num_steps: int = 3) -> Array:
    """Logarithms of the factors: Gauss-Newton on a pseudo-Huber loss."""
    spreads = spreads_for(rows)

    def cost(r: Array, x: Array) -> float:
        return float(np.sum(2.0 * (np.sqrt(1.0 + (r / NOISE) ** 2) - 1.0)) + np.sum((x / spreads) ** 2))

    x = np.zeros(len(spreads))
    r = residuals(rows, x)
    for _ in range(num_steps):
        slopes = np.stack([(residuals(rows, x + step) - r) / 0.05 for step in 0.05 * np.eye(len(x))], axis=1)
        trust = 1.0 / np.sqrt(1.0 + (r / NOISE) ** 2)
        normal = slopes.T @ (slopes * trust[:, None]) + np.diag((NOISE / spreads) ** 2)
        change = -np.linalg.solve(normal, slopes.T @ (r * trust) + x * (NOISE / spreads) ** 2)
        found = _better(lambda y: residuals(rows, y), cost, x, np.clip(change, -0.4, 0.4), cost(r, x))
        if found is None:
            break
        x, r = found
    return x


def _better(
    evaluate: Callable[[Array], Array], cost: Callable[[Array, Array], float], x: Array, change: Array, known: float
) -> tuple[Array, Array] | None:
    for share in (1.0, 0.5, 0.25):
        y = x + share * change
        r = evaluate(y)
        if cost(r, y) < known:
            return y, r
    return None


def deployment(row: Row) -> str:
    """Rows that differ in load only."""
    lengths = "" if "sharegpt" in row["dataset"] else f" {row['input_len']}/{row['output_len']}"
    return f"{row['model'][:24]} {row['gpu']} x{row['tp']}{lengths}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("family", help="for example hopper/link")
    parser.add_argument("weights", choices=["bfloat16", "fp8", "fp8 over bfloat16"])
    args = parser.parse_args()
    rows = [row for row in read_rows(args.file) if row["engine"] == "vllm" and "SUSPECT" not in row["quality"]]
    rows = [row for row in rows if _key(row) == (args.family, args.weights)]
    names = sorted({deployment(row) for row in rows})
    if not rows:
        parser.error(f"no row of {args.file} is of {args.family} with {args.weights}")
    factors = factors_of(device_of(rows[0]), fit(rows))
    values = [f"{getattr(factors, each.name):.3f}" for each in fields(Factors)]
    print(",".join([args.family, args.weights, *values]))
    print(f"{len(rows)} rows, {len(names)} deployments; left out in {FOLDS} parts:")
    for part in (set(names[i::FOLDS]) for i in range(FOLDS)):
        x = fit([row for row in rows if deployment(row) not in part], num_steps=2)
        for name in sorted(part):
            errors = [errors_of(row, x) for row in rows if deployment(row) == name]
            figures = {key: [each[key] for each in errors if key in each] for key in WEIGHTS}
            print(name, {key: round(float(np.median(np.abs(v))), 3) for key, v in figures.items() if v})


def _key(row: Row) -> tuple[str, str]:
    """Weights and KV cache of two types belong to two lines of the table."""
    device = device_of(row)
    weights, kv = ("fp8" if kind == "fp8" else "bfloat16" for kind in (device.precision.weights, device.precision.kv))
    return family_of(device.gpu), weights if weights == kv else f"{weights} over {kv}"


if __name__ == "__main__":
    main()
