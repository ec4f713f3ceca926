"""How far a figure would move if the same load ran again, estimated from one run by a moving-block bootstrap.

Requests that follow each other share queues and batches, so single requests are not independent: whole blocks of
consecutive arrivals are drawn. What differs between runs (a busy machine, another seed) is not in the interval; where
that matters, repeat the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workbench.metrics.attainment import SloPolicy, good_requests
from workbench.metrics.definitions import PER_REQUEST, is_completed, last_token_s
from workbench.metrics.records import FloatArray, RunRecord
from workbench.metrics.windows import Window, measurement_window

IntArray = npt.NDArray[np.int64]

NUM_RESAMPLES = 1000
_NUM_SLICES = 24
"""Time slices of a run for figures that are amounts per second."""
_RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "goodput_rps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure with a two-sided interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def metric_interval(
    record: RunRecord,
    name: str,
    *,
    policy: SloPolicy | None = None,
    window: Window | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """Interval of a figure by its name (`goodput_rps`, `ttft_s.p95`, ...); None where the figure is absent.

    Raises `KeyError` for a name that is no figure of requests.
    """
    draws = _draws(record, name, policy, window, np.random.Generator(np.random.PCG64(seed)))
    return None if draws is None else _interval(draws, confidence)


def gain_interval(
    baseline: RunRecord,
    other: RunRecord,
    name: str,
    *,
    maximize: bool,
    policy: SloPolicy | None = None,
    windows: tuple[Window | None, Window | None] = (None, None),
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """other / baseline - 1 in one figure, signed so that positive is better; None where the ratio does not exist.

    `windows` are the parts of both that count.

    The two runs are resampled independently, which overstates the interval when they share their requests.
    """
    base = _draws(baseline, name, policy, windows[0], np.random.Generator(np.random.PCG64([seed, 0])))
    new = _draws(other, name, policy, windows[1], np.random.Generator(np.random.PCG64([seed, 1])))
    if base is None or new is None or base[0] <= 0:
        return None
    usable = base > 0
    ratio = new[usable] / base[usable] - 1.0
    return _interval(ratio if maximize else -ratio, confidence)


def gain_of_pairs(baseline: FloatArray, other: FloatArray, *, maximize: bool, confidence: float = 0.95) -> Interval:
    """Like `gain_interval`, from repeated runs in pairs: the i-th of each ran one after the other on equal requests.

    Geometric mean of the pairs' ratios, with Student's t on their logarithms: what moves both runs of a pair alike
    (a busy machine, an unlucky seed) cancels. Needs at least two pairs of positive figures.
    """
    if len(baseline) != len(other) or len(baseline) < 2:
        raise ValueError(f"pairs: needs at least two of equal number (got {len(baseline)} and {len(other)})")
    if not (np.all(baseline > 0) and np.all(other > 0)):
        raise ValueError("pairs: a ratio needs positive figures")
    from scipy.stats import t as student  # slow to import and needed here only

    logs = np.log(other) - np.log(baseline)
    center = float(logs.mean())
    reach = float(student.ppf(0.5 + confidence / 2, len(logs) - 1)) * float(logs.std(ddof=1)) / len(logs) ** 0.5
    value, low, high = (float(np.expm1(x)) for x in (center, center - reach, center + reach))
    return Interval(value=value, low=low, high=high) if maximize else Interval(value=-value, low=-high, high=-low)


def _interval(draws: FloatArray, confidence: float) -> Interval:
    """The first draw is the figure itself, the others its resamples."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws[1:] if len(draws) > 1 else draws, [tail, 1 - tail]).tolist()
    value = float(draws[0])
    return Interval(value=value, low=min(low, value), high=max(high, value))


def _draws(
    record: RunRecord, name: str, policy: SloPolicy | None, window: Window | None, rng: np.random.Generator
) -> FloatArray | None:
    """[1 + NUM_RESAMPLES] the figure, then its resamples."""
    policy = policy if policy is not None else SloPolicy()
    window = window if window is not None else measurement_window(record)
    table = record.requests
    inside = window.holds_requests(table)
    if name in _RATES:
        amounts = {
            "requests_per_s": np.ones(len(table)),
            "output_tokens_per_s": table.num_output_tokens.astype(np.float64),
            "total_tokens_per_s": (table.num_output_tokens + table.num_prompt_tokens).astype(np.float64),
            "goodput_rps": good_requests(table, policy).astype(np.float64),
        }[name]
        done = inside & is_completed(table)
        return _rate_draws(last_token_s(table)[done], amounts[done], window, rng)
    if name == "slo_attainment":
        return _sample_draws(good_requests(table, policy)[inside].astype(np.float64), "mean", rng)
    metric, _, statistic = name.partition(".")
    if metric not in PER_REQUEST or not statistic:
        raise KeyError(f"{name}: has no interval")
    values = PER_REQUEST[metric](table)[inside & is_completed(table)]
    return _sample_draws(values[np.isfinite(values)], statistic, rng)


def _sample_draws(values: FloatArray, statistic: str, rng: np.random.Generator) -> FloatArray | None:
    if len(values) == 0:
        return None
    block = max(1, round(len(values) ** (1 / 3)))
    draws = [_statistic(values, statistic)]
    num_resamples = NUM_RESAMPLES if len(values) <= 100_000 else 100
    draws += [_statistic(values[_block_indices(len(values), block, rng)], statistic) for _ in range(num_resamples)]
    return np.array(draws)


def _statistic(values: FloatArray, statistic: str) -> float:
    if statistic == "mean":
        return float(values.mean())
    if statistic == "max":
        return float(values.max())
    return float(np.percentile(values, float(statistic.removeprefix("p"))))


def _block_indices(count: int, block: int, rng: np.random.Generator) -> IntArray:
    """[count] indices of circular blocks of consecutive items."""
    starts = rng.integers(0, count, size=-(-count // block))
    return ((starts[:, None] + np.arange(block)[None, :]) % count).reshape(-1)[:count]


def _rate_draws(ends_s: FloatArray, amounts: FloatArray, window: Window, rng: np.random.Generator) -> FloatArray | None:
    """Amount per second: the window is cut into time slices, and runs of neighbouring slices are resampled."""
    if window.duration_s <= 0:
        return None
    finite = np.isfinite(ends_s)
    place = np.clip((ends_s[finite] - window.start_s) / window.duration_s * _NUM_SLICES, 0, _NUM_SLICES - 1)
    slices = np.bincount(place.astype(np.int64), weights=amounts[finite], minlength=_NUM_SLICES)
    indices = np.stack([_block_indices(_NUM_SLICES, 3, rng) for _ in range(NUM_RESAMPLES)])
    totals = slices[indices].sum(axis=1)
    return np.concatenate([[amounts.sum()], totals]) / window.duration_s
