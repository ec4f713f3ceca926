"""Simulated against published runs: `python benchmarks/bench_e2e.py FILE.csv`; median and P90 per source, metric."""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from workbench.services.evaluate_e2e import evaluate_rows, read_rows

SHOWN = ("tpot_mean_ms", "tpot_p50_ms", "output_tok_s", "req_s", "ttft_mean_ms", "ttft_p50_ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    reasons: dict[str, int] = defaultdict(int)
    for row in evaluate_rows(read_rows(args.file), args.file.parent):
        if row["reason"] is not None:
            reasons[row["reason"].split(":")[0]] += 1
        for name, error in row["errors"].items():
            for group in ("all", row["id"].split("_")[0]):
                errors[group, name].append(error)
    for group in dict.fromkeys(key[0] for key in errors):
        for name in SHOWN:
            values = np.array(errors.get((group, name), []))
            if len(values):
                absolute = np.abs(values)
                print(
                    f"{group:14} {name:14} median {np.median(absolute):6.1%}  P90 {np.quantile(absolute, 0.9):6.1%}  "
                    f"bias {np.median(values):+6.1%}  rows {len(values)}"
                )
    for reason, count in reasons.items():
        print(f"not built: {count} rows: {reason}")


if __name__ == "__main__":
    main()
