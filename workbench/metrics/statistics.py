"""Mean, percentiles and maximum of one figure, with the number of samples they rest on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from workbench.metrics.records import FloatArray

PERCENTS = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Of the finite values of one figure; everything but the count is None without samples. Seconds."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    num_samples: int = 0

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


def describe(values: FloatArray) -> Statistics:
    """Statistics of the finite values; percentiles interpolate linearly between order statistics."""
    samples = values[np.isfinite(values)]
    if len(samples) == 0:
        return Statistics()
    p50, p90, p95, p99 = np.percentile(samples, PERCENTS).tolist()
    return Statistics(
        mean=float(samples.mean()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(samples.max()),
        num_samples=len(samples),
    )


def min_samples(percent: float) -> int:
    """Samples below which a percentile is flagged: about three are expected beyond it, so p99 needs 300."""
    return math.ceil(3 / (1 - percent / 100) - 1e-9) if percent < 100 else 1
