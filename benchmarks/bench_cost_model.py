"""Error of the operator models, cross-validated over shapes: `python benchmarks/bench_cost_model.py TABLES_DIR`.

TABLES_DIR holds gemm_*, decode_attention_*, prefill_attention_* and comm_* tables. Every model is fitted six times,
each time without a sixth of the shapes, and judged on those. All-reduce is judged by leaving out one
size at a time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.executor.calibration import fit_profile


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
        if profile.all_reduce_error is not None:
            e = profile.all_reduce_error
            print(f"{profile.gpu_id:16} {'all_reduce':28} {e.median:8.1%} {e.p90:8.1%} {e.num_rows:6}")


if __name__ == "__main__":
    main()
