"""Distributions as other tools print them: each has its own idea of a percentile."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from workbench.metrics.records import FloatArray
from workbench.metrics.statistics import PERCENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Of one figure; everything but the count is None without samples."""

    mean: float | None = None
    std: float | None = None
    """Of the population."""
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    """None also where it is infinite: more failures than the percentile leaves room for."""
    num_samples: int = 0

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


def linear(values: FloatArray) -> Distribution:
    """Finite values, percentiles between order statistics (NumPy's default)."""
    samples = values[np.isfinite(values)]
    return _distribution(samples, None, lambda percent: float(np.percentile(samples, percent)))


def with_failures(values: FloatArray, num_failed: int) -> Distribution:
    """Finite values and `num_failed` infinite ones, percentiles at the nearest order statistic; the mean is of the
    finite ones."""
    finite = values[np.isfinite(values)]
    samples = np.concatenate([finite, np.full(num_failed, math.inf)])
    found = _distribution(finite, None, lambda percent: float(np.percentile(samples, percent, method="nearest")))
    return replace(found, num_samples=len(samples)) if len(finite) else found


def stepwise(values: FloatArray, weights: FloatArray | None = None) -> Distribution:
    """Values with weights, percentiles where the cumulated weight first reaches them: no interpolation."""
    counts = np.ones(len(values)) if weights is None else weights
    keep = counts > 0
    order = np.argsort(values[keep], kind="stable")
    samples, counts = values[keep][order], counts[keep][order]
    reached = np.cumsum(counts) / counts.sum() if len(counts) else counts

    def percentile(percent: float) -> float:
        position = int(np.searchsorted(reached, percent / 100.0 - 1e-12, side="left"))
        return float(samples[min(position, len(samples) - 1)])

    return _distribution(samples, counts, percentile)


def _distribution(
    samples: FloatArray, weights: FloatArray | None, percentile: Callable[[float], float]
) -> Distribution:
    if len(samples) == 0:
        return Distribution()
    mean = float(np.average(samples, weights=weights))
    found = [percentile(percent) for percent in PERCENTS]
    p50, p90, p95, p99 = (value if math.isfinite(value) else None for value in found)
    std = math.sqrt(float(np.average((samples - mean) ** 2, weights=weights)))
    return Distribution(mean=mean, std=std, p50=p50, p90=p90, p95=p95, p99=p99, num_samples=len(samples))
