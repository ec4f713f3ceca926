"""Does the load outrun the server? Told from the growth of what is inside, and of the time to the first token.

In a steady state as many requests leave as arrive. Over capacity the number inside grows by (1 - capacity / rate) per
arrival for as long as the load lasts, and each request waits longer than the one before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workbench.metrics.definitions import e2el_per_token_s, first_token_s, last_token_s
from workbench.metrics.records import FloatArray, IntArray, Outcome, RequestTable

MOST_GROWTH = 0.05
"""Share of the arrivals of the second half by which the number inside may grow; beyond it, it is a backlog."""
_NOISE = 3.0
"""Standard deviations that the number inside is allowed on top: it is about Poisson, so sqrt(2 n) for a difference."""
_NUM_BATCHES = 5
_LEAST_SLOPE = 0.03
"""Seconds by which TTFT grows per second of arrivals: about the share of the load over capacity."""
_LEAST_REQUESTS = 40
_LEAST_WAITING = 8
_LEAST_OF_A_THIRD = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Requests inside (arrived, not ended) at the middle and at the end of the arrivals."""

    at_half: int
    at_end: int
    num_arrived: int
    """In the second half."""

    @property
    def allowed(self) -> float:
        """Growth that a steady state may show."""
        return max(MOST_GROWTH * self.num_arrived, _NOISE * math.sqrt(2.0 * max(self.at_half, 1)))

    @property
    def is_growing(self) -> bool:
        return self.at_end - self.at_half > self.allowed


def backlog_of(table: RequestTable, session: IntArray | None = None) -> Backlog:
    """Of the whole run, from its first to its last arrival. A request that never ended stays inside.

    `session` [n] joins the turns of one conversation (-1: alone), which is inside from its first turn's arrival to its
    last turn's end: at a rate of conversations, that many are in progress at once in a steady state.
    """
    if len(table) == 0:
        return Backlog(at_half=0, at_end=0, num_arrived=0)
    ended, arrived = ended_s(table), table.arrival_s
    if session is not None and (session >= 0).any():
        arrived, ended = _sessions(arrived, ended, session)
    order = np.sort(arrived)
    half, end = float(order[(len(order) - 1) // 2]), float(order[-1])
    return Backlog(
        at_half=_inside(arrived, ended, half),
        at_end=_inside(arrived, ended, end),
        num_arrived=len(order) - (len(order) + 1) // 2,
    )


def ended_s(table: RequestTable) -> FloatArray:
    """[n] when each request left: at its last token, at once where it was turned away or got none, never (inf) where it
    is unfinished."""
    last = last_token_s(table)
    left = np.where(np.isnan(last), table.arrival_s, last)
    return np.asarray(np.where(table.outcome == Outcome.UNFINISHED, np.inf, left), dtype=np.float64)


def _sessions(arrived: FloatArray, ended: FloatArray, session: IntArray) -> tuple[FloatArray, FloatArray]:
    """[sessions] first arrival and last end; a request alone is a session of its own."""
    alone = session < 0
    keys = np.where(alone, session.max() + 1 + np.cumsum(alone), session)
    _, place = np.unique(keys, return_inverse=True)
    count = int(place.max()) + 1
    first, last = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(first, place, arrived)
    np.maximum.at(last, place, ended)
    return first, last


def _inside(arrival_s: FloatArray, ended_s: FloatArray, when_s: float) -> int:
    return int(np.count_nonzero((arrival_s <= when_s) & (ended_s > when_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Slopes over the last half of the arrivals so far; both are significant."""

    queue_per_s: float
    """Requests without a first token, per second."""
    ttft_s_per_s: float

    @property
    def message(self) -> str:
        return f"saturated: the queue grows by {self.queue_per_s:.3g} requests/s, TTFT by {self.ttft_s_per_s:.2g} s/s"


def find_saturation(arrival_s: FloatArray, first_token_s: FloatArray, now_s: float) -> Saturation | None:
    """From requests in order of arrival (nan: no token yet) seen until `now_s`; None unless both trends are plain.

    Plain: over the last half of the arrivals so far, cut into batches, queue and TTFT rise from batch to batch, TTFT by
    at least 3 % of the time that passes. One that has no token yet counts with the wait it has had so far, which is too
    little: no slope comes from it.
    """
    count = len(arrival_s)
    if count < _LEAST_REQUESTS:
        return None
    arrivals = arrival_s[count // 2 :]
    ttfts = np.where(np.isnan(first_token_s), now_s, first_token_s)[count // 2 :] - arrivals
    started = np.sort(first_token_s[~np.isnan(first_token_s)])
    queue = np.arange(count // 2 + 1, count + 1) - np.searchsorted(started, arrivals, side="right")
    if queue[-1] < _LEAST_WAITING or arrivals[-1] <= arrivals[0]:
        return None
    has_token = ~np.isnan(first_token_s[count // 2 :])
    if np.count_nonzero(has_token) < _NUM_BATCHES * 2:
        return None
    if not (_rises(queue.astype(np.float64)) and _rises(ttfts[has_token])):
        return None
    slope = _slope(arrivals[has_token], ttfts[has_token])
    if slope < _LEAST_SLOPE:
        return None
    return Saturation(queue_per_s=_slope(arrivals, queue.astype(np.float64)), ttft_s_per_s=slope)


def saturation_of(table: RequestTable) -> Saturation | None:
    """Of a finished run, until its last arrival. Whoever was turned away does not queue."""
    if len(table) == 0:
        return None
    first = first_token_s(table)
    queued = ~np.isnan(first) | (table.outcome == Outcome.UNFINISHED)
    return find_saturation(table.arrival_s[queued], first[queued], float(table.arrival_s[-1]))


def _rises(values: FloatArray) -> bool:
    """Each batch's mean is above the one before: by chance once in 5! = 120."""
    means = np.array([batch.mean() for batch in np.array_split(values, _NUM_BATCHES)])
    return bool((np.diff(means) > 0).all())


def _slope(times: FloatArray, values: FloatArray) -> float:
    """Least squares."""
    centered = times - times.mean()
    spread = float((centered**2).sum())
    return float((centered * values).sum()) / spread if spread > 0 else 0.0


def slowdown_of(table: RequestTable) -> float | None:
    """Median time per output token, the first included, of the last third of arrivals / of the first third; None for
    fewer than thirty completed requests."""
    pace = e2el_per_token_s(table)
    known = np.flatnonzero(np.isfinite(pace))
    third = len(known) // 3
    if third < _LEAST_OF_A_THIRD:
        return None
    early, late = np.median(pace[known[:third]]), np.median(pace[known[-third:]])
    return float(late / early) if early > 0 else None
