"""The part of a run in steady state: where the warm-up ends is recognised, and so is where the load does."""

from __future__ import annotations

import numpy as np

from workbench.metrics.records import FloatArray, RunRecord
from workbench.metrics.saturation import left_s, saturation_of
from workbench.metrics.windows import Window, issued_s

STEADY_S = 60.0
"""Loads that last less by design are judged whole: there is no telling warm-up from chance in them."""
_BATCH = 5
_MOST_WARM_UP = 0.5
"""Share of the arrivals: where the warm-up seems longer, the run has no steady state to speak of."""
_LEAST_BATCHES = 10


def steady_window(record: RunRecord) -> Window:
    """From the end of the warm-up to the last arrival, after which the server only empties.

    The warm-up ends where leaving out more would make the mean number of requests inside less certain (MSER-5: White,
    Cobb & Spratt 2000), looking at the first half of the arrivals.
    """
    table = record.requests
    issued = np.sort(issued_s(table))
    inside = _inside_at(issued, left_s(table))
    return Window(start_s=float(issued[warm_up_length(inside)]), end_s=float(issued[-1]))


def warm_up_length(series: FloatArray) -> int:
    """Observations to leave out at the beginning, by MSER-5; 0 for fewer than fifty."""
    count = len(series) // _BATCH
    if count < _LEAST_BATCHES:
        return 0
    means = series[: count * _BATCH].reshape(count, _BATCH).mean(axis=1)
    most = int(count * _MOST_WARM_UP)
    errors = [float(means[cut:].var()) / (count - cut) for cut in range(most + 1)]
    return int(np.argmin(errors)) * _BATCH


def find_trend(record: RunRecord) -> str | None:
    """What shows that the run has no steady state; None where nothing does."""
    saturation = saturation_of(record.requests)
    return None if saturation is None else saturation.message


def _inside_at(times: FloatArray, ended_s: FloatArray) -> FloatArray:
    """[n] requests inside after each issue."""
    ended = np.searchsorted(np.sort(ended_s), times, side="right")
    return np.asarray(np.arange(1, len(times) + 1) - ended, dtype=np.float64)
