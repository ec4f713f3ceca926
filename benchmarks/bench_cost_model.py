"""Error of the operator models, cross-validated over shapes: `python benchmarks/bench_cost_model.py TABLES_DIR`.

TABLES_DIR holds gemm_*, decode_attention_*, prefill_attention_* and comm_* tables. Every model is fitted six times,
each time without a sixth of the shapes, and judged on those. All-reduce is judged by leaving out one
size at a time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from engine.catalog import find_gpu
from engine.executor.calibration import fit_profile
from engine.executor.cost_model.collectives import all_reduce_s, borders, with_borders
from engine.executor.cost_model.operators import OperatorProfile


def all_reduce_errors(profile: OperatorProfile) -> list[float]:
    """Each inner size predicted without any time of that size, as long as its regime has two other sizes."""
    arch, errors = find_gpu(profile.gpu_id).arch, []
    for key, table in profile.all_reduce.items():
        kernel, num_gpus = key.rsplit("/", 1)
        regimes = np.searchsorted(borders(kernel, int(num_gpus), arch), [size for size, _ in table], side="right")
        for regime, (size, measured) in zip(regimes[1:-1], table[1:-1], strict=True):
            if np.count_nonzero(regimes == regime) < 3:
                continue
            others = {name: [pair for pair in each if pair[0] != size] for name, each in profile.all_reduce.items()}
            predicted = all_reduce_s(with_borders(others, arch), kernel, int(num_gpus), size)
            if predicted is not None:
                errors.append(abs(predicted / measured - 1.0))
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", type=Path)
    args = parser.parse_args()
    print(f"{'GPU':16} {'operator':28} {'median':>8} {'P90':>8} {'rows':>6}")
    for path in sorted(args.tables.glob("gemm_*.csv")):
        profile = fit_profile(args.tables, path.stem.removeprefix("gemm_"))
        for name, model in profile.models.items():
            if model.error is not None:
                e = model.error
                print(f"{profile.gpu_id:16} {name:28} {e.median:8.1%} {e.p90:8.1%} {e.num_rows:6}")
        errors = all_reduce_errors(profile)
        if errors:
            median, p90 = np.median(errors), np.quantile(errors, 0.9)
            print(f"{profile.gpu_id:16} {'all_reduce':28} {median:8.1%} {p90:8.1%} {len(errors):6}")


if __name__ == "__main__":
    main()
