"""What a list of requests tells before anything runs. Pure arithmetic on columns; chunked, so that tens of millions of
rows need little beside themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
AnyIntArray = npt.NDArray[np.integer[Any]]

_CHUNK = 1 << 20
_MAX_COUNTED = 1 << 22
"""Lengths up to here are counted one by one; a histogram is faster than sorting and needs no copy."""
_MAX_BINS = 1 << 24

CANDIDATE_MODEL_LENS = tuple(1 << power for power in range(10, 21))
"""1,024 to 1,048,576 tokens."""
ACCEPTED_REFUSALS = 0.001
"""The suggested `max_model_len` refuses at most this share of the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFigures:
    """Tokens of one column; percentiles are linear between order statistics."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    min: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalFigures:
    """None where a figure means nothing: no times, fewer than three requests, all at one time."""

    span_s: float | None = None
    """Last - first arrival."""
    rate_per_s: float | None = None
    """Requests / span."""
    cv: float | None = None
    """Standard deviation / mean of the gaps; 1 for Poisson."""
    peak_to_mean_1s: float | None = None
    """Most arrivals in a second / mean per second."""
    peak_to_mean_1min: float | None = None
    head_s: float | None = None
    """Time before the first arrival, on the file's own clock."""
    longest_gap_s: float | None = None
    longest_gap_at_s: float | None = None
    """Where it begins, from the first arrival."""
    num_long_gaps: int = 0
    """Gaps of over ten times the mean gap and over 1 s."""
    num_same_time: int = 0
    """Requests that arrive together with the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Third:
    """A third of the requests, in order of arrival."""

    rate_per_s: float | None
    input_mean: float
    output_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLenFigures:
    """Which windows the requests need."""

    refused: dict[int, float]
    """`max_model_len` -> share of the requests with input + output above it."""
    suggested: int
    """Smallest power of two that refuses at most 0.1 % of the requests."""


def _chunks(column: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, len(column), _CHUNK):
        yield column[start : start + _CHUNK]


def _sums(tokens: AnyIntArray, more: AnyIntArray | None) -> Iterator[AnyIntArray]:
    """Chunks of one column, or of the sum of two."""
    if more is None:
        yield from _chunks(tokens)
    else:
        yield from (one + other for one, other in zip(_chunks(tokens), _chunks(more), strict=True))


def length_figures(tokens: AnyIntArray, more: AnyIntArray | None = None) -> LengthFigures | None:
    """Of `tokens`, or of the sums of both columns; None for no rows."""
    if len(tokens) == 0:
        return None
    largest = max(int(chunk.max()) for chunk in _sums(tokens, more))
    smallest = min(int(chunk.min()) for chunk in _sums(tokens, more))
    mean = sum(float(chunk.sum(dtype=np.int64)) for chunk in _sums(tokens, more)) / len(tokens)
    percents = (50.0, 90.0, 95.0, 99.0)
    if largest > _MAX_COUNTED:
        values = [float(value) for value in np.percentile(tokens if more is None else tokens + more, percents)]
    else:
        counts = np.zeros(largest + 1, dtype=np.int64)
        for chunk in _sums(tokens, more):
            counts += np.bincount(chunk, minlength=largest + 1)
        values = _percentiles(counts, percents)
    p50, p90, p95, p99 = values
    return LengthFigures(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, min=smallest, max=largest)


def _percentiles(counts: npt.NDArray[np.int64], percents: tuple[float, ...]) -> list[float]:
    cumulative = np.cumsum(counts)
    values = []
    for percent in percents:
        position = percent / 100 * (int(cumulative[-1]) - 1)
        rank = int(position)
        low, high = np.searchsorted(cumulative, [rank, min(rank + 1, int(cumulative[-1]) - 1)], side="right").tolist()
        values.append(low + (high - low) * (position - rank))
    return values


def arrival_figures(arrival_s: FloatArray, head_s: float | None = None) -> ArrivalFigures:
    """Of ascending arrival times, s."""
    count = len(arrival_s)
    span_s = float(arrival_s[-1] - arrival_s[0]) if count > 1 else 0.0
    if span_s <= 0:
        return ArrivalFigures(head_s=head_s, num_same_time=max(count - 1, 0))
    mean_gap = span_s / (count - 1)
    square_sum, longest, where, num_long, num_same = 0.0, -1.0, 0, 0, 0
    threshold_s = max(10 * mean_gap, 1.0)
    for start in range(0, count - 1, _CHUNK):
        gaps = np.diff(arrival_s[start : min(start + _CHUNK, count - 1) + 1])
        num_long += int(np.count_nonzero(gaps > threshold_s))
        num_same += int(np.count_nonzero(gaps == 0))
        index = int(gaps.argmax())
        if gaps[index] > longest:
            longest, where = float(gaps[index]), start + index
        gaps -= mean_gap
        square_sum += float(np.dot(gaps, gaps))
    per_second = counts_per_bin(arrival_s, 1.0)
    return ArrivalFigures(
        span_s=span_s,
        rate_per_s=count / span_s,
        cv=(square_sum / (count - 1)) ** 0.5 / mean_gap if count > 2 else None,
        peak_to_mean_1s=_peak_to_mean(per_second, 1),
        peak_to_mean_1min=_peak_to_mean(per_second, 60),
        head_s=head_s,
        longest_gap_s=longest,
        longest_gap_at_s=float(arrival_s[where] - arrival_s[0]),
        num_long_gaps=num_long,
        num_same_time=num_same,
    )


def counts_per_bin(arrival_s: FloatArray, width_s: float) -> npt.NDArray[np.int64] | None:
    """Arrivals in each `width_s` from the first arrival on; None where that would be too many bins."""
    num_bins = (arrival_s[-1] - arrival_s[0]) / width_s
    if num_bins > _MAX_BINS:
        return None
    counts = np.zeros(int(num_bins) + 1, dtype=np.int64)
    for chunk in _chunks(arrival_s):
        bins = ((chunk - arrival_s[0]) * (1 / width_s)).astype(np.int32)
        part = np.bincount(bins - bins[0])  # ascending: a chunk touches few bins
        counts[bins[0] : bins[0] + len(part)] += part[: len(counts) - bins[0]]
    return counts


def _peak_to_mean(counts: npt.NDArray[np.int64] | None, seconds: int) -> float | None:
    """Of windows of whole seconds, from counts per second; None where not even one window is full."""
    if counts is None or len(counts) <= seconds:
        return None
    windows = np.add.reduceat(counts, np.arange(0, len(counts), seconds)) if seconds > 1 else counts
    return float(windows.max() / windows.mean())


def thirds(arrival_s: FloatArray | None, inputs: AnyIntArray, outputs: AnyIntArray) -> tuple[Third, ...]:
    """The requests in three equal parts; empty for fewer than 30. Rates need times."""
    count = len(inputs)
    if count < 30:
        return ()
    edges = [0, count // 3, 2 * count // 3, count]
    found = []
    for start, end in itertools.pairwise(edges):
        last = min(end, count - 1)
        span_s = 0.0 if arrival_s is None else float(arrival_s[last] - arrival_s[start])
        found.append(
            Third(
                rate_per_s=(last - start) / span_s if span_s > 0 else None,
                input_mean=float(inputs[start:end].mean()),
                output_mean=float(outputs[start:end].mean()),
            )
        )
    return tuple(found)


def largest_change(parts: tuple[Third, ...]) -> float | None:
    """Largest ratio between two thirds in rate or mean lengths, minus 1; None where there are none."""
    changes = []
    for name in ("rate_per_s", "input_mean", "output_mean"):
        values = [value for value in (getattr(part, name) for part in parts) if value is not None]
        if values and min(values) > 0:
            changes.append(max(values) / min(values) - 1)
    return max(changes, default=None)


def model_len_figures(inputs: AnyIntArray, outputs: AnyIntArray) -> ModelLenFigures | None:
    """None for no rows."""
    count = len(inputs)
    if count == 0:
        return None
    over = np.zeros(len(CANDIDATE_MODEL_LENS), dtype=np.int64)
    for ins, outs in zip(_chunks(inputs), _chunks(outputs), strict=True):
        total = ins + outs
        largest = int(total.max())
        for index, limit in enumerate(CANDIDATE_MODEL_LENS):
            if limit >= largest:
                break
            over[index] += np.count_nonzero(total > limit)
    refused = {limit: int(number) / count for limit, number in zip(CANDIDATE_MODEL_LENS, over, strict=True)}
    suggested = next(
        (limit for limit, share in refused.items() if share <= ACCEPTED_REFUSALS), CANDIDATE_MODEL_LENS[-1]
    )
    return ModelLenFigures(refused=refused, suggested=suggested)
