"""IOG's runs (github.com/IOG-Foundation/llm-inference-benchmarks): what its script, `run_benchmark.sh`, and the
published durations tell beside the cells of a row.

The script sends the same 200 requests, with one seed, at 32, 16, 8, 4 and 1 per second to one server.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from workbench.services.evaluate_cells import Row, number

FloatArray = npt.NDArray[np.float64]

_SEED = 42
_FIRST_RATE = 32.0
"""Requests per second."""
_LONGEST = 0.83
"""Where the longest answer comes, as a share of the requests' order, the same for every model: durations show it."""
RTX_4090_DELAY_MS = 80.0
"""What passes beside others on the way to IOG's RTX 4090 hosts and back, at light loads too; H100 hosts show none."""


def is_iog(row: Row) -> bool:
    return "IOG-Foundation" in row.get("source", "")


def was_served_before(row: Row) -> bool:
    """The run repeats the requests of an earlier one on the same server, whose prefix cache holds what fits."""
    rate = number(row, "request_rate")
    return is_iog(row) and rate is not None and rate < _FIRST_RATE


def iog_arrivals(count: int, rate: float) -> FloatArray:
    """[count] seconds. vLLM's client of that version, 0.8, takes numpy's gaps as they come: the last of 200 requests
    leaves after 187.6 / rate, which the published durations show."""
    gaps_s = np.random.RandomState(_SEED).gamma(1.0, 1.0 / rate, count)
    return np.concatenate([[0.0], np.cumsum(gaps_s)[:-1]])


def with_longest_late(lengths: FloatArray) -> FloatArray:
    """[count] answers, the longest in its place."""
    i, k = int(lengths.argmax()), int(_LONGEST * len(lengths))
    lengths = lengths.copy()
    lengths[[i, k]] = lengths[[k, i]]
    return lengths
