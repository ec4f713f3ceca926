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
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """other / baseline - 1 in one figure, signed so that positive is better; None where the ratio does not exist.

    The two runs are resampled independently, which overstates the interval when they share their requests.
    """
    base = _draws(baseline, name, policy, None, np.random.Generator(np.random.PCG64([seed, 0])))
    new = _draws(other, name, policy, None, np.random.Generator(np.random.PCG64([seed, 1])))
    if base is None or new is None or base[0] <= 0:
        return None
    usable = base > 0
    ratio = new[usable] / base[usable] - 1.0
    return _interval(ratio if maximize else -ratio, confidence)


def gain_of_repeats(baseline: FloatArray, other: FloatArray, *, maximize: bool, confidence: float = 0.95) -> Interval:
    """Like `gain_interval`, from repeated runs: one figure per run, at least two of each.

    Ratio of means; the interval follows from the spread between runs (delta method, Student's t with the Welch degrees
    of freedom).
    """
    if len(baseline) < 2 or len(other) < 2:
        raise ValueError(f"repeats: needs at least two runs of each (got {len(baseline)} and {len(other)})")
    from scipy.stats import t as student  # slow to import and needed here only

    mean_0, mean_1 = float(np.mean(baseline)), float(np.mean(other))
    variances = [float(np.var(other, ddof=1)) / len(other) / mean_0**2]
    variances.append(float(np.var(baseline, ddof=1)) / len(baseline) * mean_1**2 / mean_0**4)
    total = sum(variances)
    value = mean_1 / mean_0 - 1.0
    value = value if maximize else -value
    if total == 0:
        return Interval(value=value, low=value, high=value)
    freedom = total**2 / (variances[0] ** 2 / (len(other) - 1) + variances[1] ** 2 / (len(baseline) - 1))
    reach = float(student.ppf(0.5 + confidence / 2, freedom)) * total**0.5
    return Interval(value=value, low=value - reach, high=value + reach)


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
