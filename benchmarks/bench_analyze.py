"""How long `analyze` takes on a large CSV, as a multiple of `pandas.read_csv` of the same file in the same process.

    python benchmarks/bench_analyze.py [--rows 1000000] [--json]

Both are measured in turn, several times; the ratio is that of the medians. The first run of each is left out: it loads
libraries. Peak memory is that of this process, after all runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from workbench.services.analyze import analyze
from workbench.workload.traces import reading

_REPEATS = 7


def write_trace(path: Path, num_rows: int) -> None:
    """An Azure 2024 file: Poisson arrivals at 50 per s, uniform lengths."""
    rng = np.random.default_rng(0)
    micros = (np.cumsum(rng.exponential(0.02, num_rows)) * 1e6).astype("timedelta64[us]")
    frame = pd.DataFrame(
        {
            "TIMESTAMP": (np.datetime64("2024-05-10T00:00:00", "us") + micros).astype(str),
            "ContextTokens": rng.integers(1, 8000, num_rows),
            "GeneratedTokens": rng.integers(1, 1000, num_rows),
        }
    )
    frame["TIMESTAMP"] = frame["TIMESTAMP"].str.replace("T", " ") + "+00:00"
    frame.to_csv(path, index=False)


def timed(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def analyze_afresh(path: Path) -> None:
    reading._read.cache_clear()
    analyze(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.csv"
        write_trace(path, arguments.rows)
        pairs = [(timed(lambda: analyze_afresh(path)), timed(lambda: pd.read_csv(path))) for _ in range(_REPEATS + 1)]
    ours_s, pandas_s = (median(column) for column in zip(*pairs[1:], strict=True))
    result = {
        "rows": arguments.rows,
        "analyze_s": ours_s,
        "read_csv_s": pandas_s,
        "ratio": ours_s / pandas_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"{arguments.rows} rows: analyze {ours_s:.3f} s, read_csv {pandas_s:.3f} s, ratio {result['ratio']:.2f}")


if __name__ == "__main__":
    main()
