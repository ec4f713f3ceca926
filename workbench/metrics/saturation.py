"""Does the load outrun the server? Told from trends over the arrivals: of what is inside, and of latency.

In a steady state as many requests leave as arrive. Over capacity the number inside grows by (1 - capacity / rate) per
arrival for as long as the load lasts, and each request waits longer, or is served more slowly, than the one before. One
instant shows neither: a burst at the end of a short run leaves a few more inside than there were halfway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workbench.metrics.definitions import BoolArray, e2el_per_token_s, first_token_s, last_token_s
from workbench.metrics.records import FloatArray, IntArray, Outcome, RequestTable

_NUM_BATCHES = 8
_T_FINISHED = 3.143
"""Student's t with 6 degrees of freedom, one-sided 1 %: eight batch means and a line."""
_T_LIVE = 5.208
"""The same at 0.1 %: a run that lasts is asked some thirty times."""
_LEAST_REQUESTS = 40
_LEAST_GROWTH = 8.0
"""Requests by which the number inside must grow, however few are inside."""
_LEAST_SHARE = 0.05
"""The same as a share of the arrivals in the window."""
_NOISE = 3.0
"""Standard deviations that the number inside may differ by between two moments: about Poisson, so sqrt(2 n)."""
_LEAST_TTFT_SLOPE = 0.03
"""Seconds by which TTFT grows per second of arrivals: about the share of the load over capacity."""
_LEAST_TTFT_GROWTH_S = 0.05
_LEAST_SLOWDOWN = 0.1
"""Share of the mean time per token by which it grows over the window."""
_LEAST_OF_A_THIRD = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A line through the batch means of a series."""

    slope_per_s: float
    growth: float
    """From the beginning to the end of the window."""
    t_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Significant growth over the last half of the arrivals."""

    inside_per_s: float
    """Requests (or conversations) that have arrived and not ended, per second."""
    ttft_s_per_s: float | None
    """None where no request waits longer, but all are served more slowly."""
    slowdown: float | None = None
    """Growth of the time per output token over the window, as a share of its mean."""

    @property
    def message(self) -> str:
        if self.ttft_s_per_s is not None:
            latency = f"TTFT by {self.ttft_s_per_s:.2g} s/s"
        else:
            latency = f"the time per output token by {self.slowdown or 0.0:.0%}"
        return f"saturated: the number of requests inside grows by {self.inside_per_s:.3g}/s, {latency}"


def find_saturation(arrival_s: FloatArray, first_token_s: FloatArray, left_s: FloatArray) -> Saturation | None:
    """Judge a run that lasts by the requests issued so far, in order of arrival (nan: no token yet; inf: still
    inside)."""
    rows = slice(len(arrival_s) // 2, None)
    if len(arrival_s) < _LEAST_REQUESTS:
        return None
    inside = _inside_trend(arrival_s, left_s, _T_LIVE)
    ttft = _ttft_trend(arrival_s[rows], first_token_s[rows], _T_LIVE)
    if inside is None or ttft is None:
        return None
    return Saturation(inside_per_s=inside.slope_per_s, ttft_s_per_s=ttft.slope_per_s)


def saturation_of(table: RequestTable, session: IntArray | None = None) -> Saturation | None:
    """Judge a finished run until its last arrival. Whoever was turned away leaves at once and does not queue.

    `session` [n] joins the turns of one conversation (-1: alone), which is inside from its first turn's arrival to its
    last turn's end: at a rate of conversations, that many are in progress at once in a steady state.
    """
    if len(table) < _LEAST_REQUESTS:
        return None
    arrived, left = table.arrival_s, left_s(table)
    if session is not None and (session >= 0).any():
        arrived, left = _sessions(arrived, left, session)
    inside = _inside_trend(arrived, left, _T_FINISHED)
    if inside is None:
        return None
    rows = slice(len(table) // 2, None)
    ttft = _ttft_trend(table.arrival_s[rows], first_token_s(table)[rows], _T_FINISHED)
    if ttft is not None:
        return Saturation(inside_per_s=inside.slope_per_s, ttft_s_per_s=ttft.slope_per_s)
    slowdown = _slowdown_trend(table)
    if slowdown is None:
        return None
    return Saturation(inside_per_s=inside.slope_per_s, ttft_s_per_s=None, slowdown=slowdown)


def left_s(table: RequestTable) -> FloatArray:
    """[n] when each request left: at its last token, at once where it was turned away or got none, never (inf) where it
    is unfinished."""
    last = last_token_s(table)
    left = np.where(np.isnan(last), table.arrival_s, last)
    return np.asarray(np.where(table.outcome == Outcome.UNFINISHED, np.inf, left), dtype=np.float64)


def _inside_trend(arrived: FloatArray, left: FloatArray, t_needed: float) -> Trend | None:
    """Growth of the number inside at each arrival of the last half; None where a steady state may show as much."""
    half = len(arrived) // 2
    times = arrived[half:]
    inside = np.arange(half + 1, len(arrived) + 1) - np.searchsorted(np.sort(left), times, side="right")
    trend = fit_trend(times, inside.astype(np.float64))
    noise = _NOISE * math.sqrt(2.0 * max(float(inside.mean()), 1.0))
    if trend is None or trend.growth < max(_LEAST_GROWTH, _LEAST_SHARE * len(times), noise):
        return None
    return trend if trend.t_value > t_needed else None


def _ttft_trend(arrived: FloatArray, first: FloatArray, t_needed: float) -> Trend | None:
    """Growth of TTFT. A request without a token counts nowhere: the wait it has had so far is too little."""
    known = ~np.isnan(first)
    trend = fit_trend(arrived[known], first[known] - arrived[known])
    if trend is None or trend.slope_per_s < _LEAST_TTFT_SLOPE or trend.growth < _LEAST_TTFT_GROWTH_S:
        return None
    return trend if trend.t_value > t_needed else None


def _slowdown_trend(table: RequestTable) -> float | None:
    """Growth of the time per output token, after the server has filled: until the first requests leave, batches grow by
    themselves."""
    pace, stay = e2el_per_token_s(table), left_s(table) - table.arrival_s
    known: BoolArray = np.isfinite(pace) & np.isfinite(stay)
    if not known.any():
        return None
    full_s = float(table.arrival_s[0] + np.median(stay[known]))
    known &= table.arrival_s >= max(full_s, float(table.arrival_s[len(table) // 2]))
    if np.count_nonzero(known) < _LEAST_REQUESTS:
        return None
    trend = fit_trend(table.arrival_s[known], pace[known])
    if trend is None or trend.t_value <= _T_FINISHED:
        return None
    share = trend.growth / float(pace[known].mean())
    return share if share >= _LEAST_SLOWDOWN else None


def fit_trend(times: FloatArray, values: FloatArray) -> Trend | None:
    """Least squares over eight batch means, which hardly depend on each other; None for under two values a batch, or
    where no time passes."""
    if len(times) < 2 * _NUM_BATCHES:
        return None
    x = np.array([batch.mean() for batch in np.array_split(times, _NUM_BATCHES)])
    y = np.array([batch.mean() for batch in np.array_split(values, _NUM_BATCHES)])
    x -= x.mean()
    spread = float((x**2).sum())
    if spread <= 0:
        return None
    slope = float((x * y).sum()) / spread
    error = math.sqrt(float(((y - y.mean() - slope * x) ** 2).sum()) / (_NUM_BATCHES - 2) / spread)
    t_value = slope / error if error > 0 else math.copysign(math.inf, slope) if slope else 0.0
    return Trend(slope_per_s=slope, growth=slope * float(times[-1] - times[0]), t_value=t_value)


def _sessions(arrived: FloatArray, left: FloatArray, session: IntArray) -> tuple[FloatArray, FloatArray]:
    """[sessions] first arrival and last end, in order of arrival; a request alone is a session of its own."""
    alone = session < 0
    keys = np.where(alone, session.max() + 1 + np.cumsum(alone), session)
    _, place = np.unique(keys, return_inverse=True)
    count = int(place.max()) + 1
    first, last = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(first, place, arrived)
    np.maximum.at(last, place, left)
    order = np.argsort(first, kind="stable")
    return first[order], last[order]


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
