"""Draws token lengths from the distributions of `workbench.scenario.lengths`."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from workbench.scenario.errors import ScenarioError, shown
from workbench.scenario.lengths import (
    ConstantLength,
    EmpiricalLength,
    LengthSpec,
    LognormalLength,
    NormalLength,
    PercentilesLength,
    UniformLength,
    ZipfLength,
    percentile_points,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_LONGEST = 1 << 40
"""No draw exceeds this, whatever the tail: lengths stay whole numbers that can be added."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Lengths and what the clamp did to them."""

    tokens: IntArray
    num_raised: int = 0
    """Draws under `min`."""
    num_lowered: int = 0
    """Draws over `max`."""


def draw_lengths(length: LengthSpec, count: int, rng: np.random.Generator) -> Draw:
    """`count` independent lengths. Raises `ScenarioError` for an empirical file that cannot be used."""
    match length:
        case ConstantLength():
            return Draw(np.full(count, length.value, dtype=np.int64))
        case UniformLength():
            return Draw(rng.integers(length.low, length.high, size=count, endpoint=True, dtype=np.int64))
        case NormalLength():
            return Draw(_truncated_normal(length, count, rng))
        case LognormalLength():
            mu, sigma = lognormal_parameters(length)
            return _clamped(np.exp(mu + sigma * rng.standard_normal(count)), length.min, length.max)
        case PercentilesLength():
            return _from_percentiles(length, count, rng)
        case ZipfLength():
            ranks = np.arange(1, length.high - length.low + 2, dtype=np.float64)
            return Draw(length.low + _choose(ranks**-length.exponent, count, rng))
        case EmpiricalLength():
            values = np.asarray(_empirical_values(length), dtype=np.int64)
            weights = np.ones(len(values)) if length.weights is None else np.asarray(length.weights, dtype=np.float64)
            return _clamped(values[_choose(weights, count, rng)].astype(np.float64), length.min, length.max)


def lognormal_parameters(length: LognormalLength) -> tuple[float, float]:
    """(mu, sigma) of the logarithm."""
    if length.percentiles is not None:
        (low, low_tokens), (high, high_tokens) = percentile_points(length.percentiles)
        z_low, z_high = NormalDist().inv_cdf(low / 100), NormalDist().inv_cdf(high / 100)
        sigma = (math.log(high_tokens) - math.log(low_tokens)) / (z_high - z_low)
        return math.log(low_tokens) - sigma * z_low, sigma
    assert length.sigma is not None
    if length.median is not None:
        return math.log(length.median), length.sigma
    assert length.mean is not None
    return math.log(length.mean) - length.sigma**2 / 2, length.sigma


def _clamped(values: FloatArray, low: int, high: int | None) -> Draw:
    tokens = np.rint(np.minimum(values, _LONGEST)).astype(np.int64)
    bound = _LONGEST if high is None else high
    return Draw(
        np.clip(tokens, low, bound),
        num_raised=int(np.count_nonzero(tokens < low)),
        num_lowered=int(np.count_nonzero(tokens > bound)),
    )


def _truncated_normal(length: NormalLength, count: int, rng: np.random.Generator) -> IntArray:
    """By inversion of the distribution function, so that every draw costs one uniform number."""
    from scipy.special import ndtr, ndtri  # slow to import and needed here only

    low = (length.min - 0.5 - length.mean) / length.std
    high = math.inf if length.max is None else (length.max + 0.5 - length.mean) / length.std
    uniform = ndtr(low) + rng.random(count) * (ndtr(high) - ndtr(low))
    tokens = np.rint(length.mean + length.std * ndtri(uniform))
    bounded = np.clip(tokens, length.min, length.max if length.max is not None else _LONGEST)
    return np.asarray(bounded, dtype=np.int64)


def _from_percentiles(length: PercentilesLength, count: int, rng: np.random.Generator) -> Draw:
    """Straight lines between the points in (standard normal quantile, log tokens), continued beyond the outermost."""
    points = percentile_points(length.percentiles)
    inner = [(NormalDist().inv_cdf(percent / 100), math.log(tokens)) for percent, tokens in points if 0 < percent < 100]
    z, log_tokens = np.array(inner).T
    normal = rng.standard_normal(count)
    piece = np.clip(np.searchsorted(z, normal) - 1, 0, len(z) - 2)
    slope = np.diff(log_tokens) / np.diff(z)
    values = np.exp(np.minimum(log_tokens[piece] + slope[piece] * (normal - z[piece]), math.log(_LONGEST)))
    stated = dict(points)
    low = max(length.min, math.ceil(stated.get(0.0, 1)))
    highs = [int(bound) for bound in (length.max, stated.get(100.0)) if bound is not None]
    return _clamped(values, low, min(highs) if highs else None)


def _choose(weights: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """Indices with probability proportional to `weights`."""
    cumulative = np.cumsum(weights)
    chosen = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
    last = int(np.flatnonzero(weights)[-1])
    return np.asarray(np.minimum(chosen, last), dtype=np.int64)


def choose_group(num_groups: int, exponent: float, count: int, rng: np.random.Generator) -> IntArray:
    """Group of each request, zipf-popular."""
    return _choose(np.arange(1, num_groups + 1, dtype=np.float64) ** -exponent, count, rng)


def _empirical_values(length: EmpiricalLength) -> Sequence[int]:
    if length.values is not None:
        return length.values
    assert length.path is not None
    assert length.column is not None
    return _read_column(length.path, length.column)


def _read_column(path: Path, column: str) -> list[int]:
    values: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            if column not in (reader.fieldnames or ()):
                raise ScenarioError(f"{path}: no column {column!r}. Columns: {', '.join(reader.fieldnames or ())}")
            for row in reader:
                tokens = float(row[column])
                if not 1 <= tokens < _LONGEST:
                    raise ValueError(tokens)
                values.append(round(tokens))
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read as CSV ({error})") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError(
            f"{path}:{len(values) + 2}: {column}: must be a number of tokens, at least 1 ({shown(str(error))})"
        ) from None
    if not values:
        raise ScenarioError(f"{path}: has no rows below its header")
    return values
