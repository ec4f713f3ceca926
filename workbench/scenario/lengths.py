"""Token length distributions, discriminated by `kind`; a bare number is `constant`, `{percentiles: ...}` needs none."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from workbench.scenario.base import Count, NonNegative, Positive, Spec, problem

Percentiles = dict[str, Positive]
"""`p50` -> tokens; names are `p` and a number from 0 to 100."""


def percentile_points(percentiles: dict[str, float]) -> list[tuple[float, float]]:
    """(percent, tokens) in ascending order. Raises a problem for a bad name or values that fall."""
    points = []
    for name, tokens in percentiles.items():
        match = re.fullmatch(r"p(\d+(?:\.\d+)?)", name)
        if match is None or float(match[1]) > 100:
            raise problem(f"percentiles.{name}", "must be named p0 to p100, for example p50 or p99.9")
        points.append((float(match[1]), tokens, name))
    points.sort()
    for (_, lower, below), (_, higher, above) in itertools.pairwise(points):
        if higher < lower:
            raise problem(f"percentiles.{above}", f"must be at least {below} ({lower:g}, got {higher:g})")
    return [(percent, tokens) for percent, tokens, _ in points]


class _Clamped(Spec):
    """Bounds on what is drawn."""

    min: Count = 1
    """Shortest length, tokens. Draws below are raised to it and counted (`normal`: truncated there)."""
    max: Count | None = None
    """Longest length, tokens. Draws above are lowered to it and counted (`normal`: truncated there)."""

    @model_validator(mode="after")
    def _check_bounds(self) -> _Clamped:
        if self.max is not None and self.max < self.min:
            raise problem("max", f"must be at least min ({self.min}, got {self.max})")
        return self


class ConstantLength(Spec):
    """Always the same length."""

    kind: Literal["constant"]
    value: Count
    """Tokens."""


class UniformLength(Spec):
    """Every whole number from `low` to `high`, both included, equally likely."""

    kind: Literal["uniform"]
    low: Count
    high: Count

    @model_validator(mode="after")
    def _check(self) -> UniformLength:
        if self.high < self.low:
            raise problem("high", f"must be at least low ({self.low}, got {self.high})")
        return self


class NormalLength(_Clamped):
    """Normal, truncated (not clamped) to `min` ... `max`."""

    kind: Literal["normal"]
    mean: Positive
    """Mean before truncation, tokens."""
    std: Positive
    """Standard deviation before truncation, tokens."""


class LognormalLength(_Clamped):
    """Lognormal, by `median` or `mean` with `sigma`, or by two `percentiles`."""

    kind: Literal["lognormal"]
    median: Positive | None = None
    """Tokens; exp(mu)."""
    mean: Positive | None = None
    """Arithmetic mean of the lengths, tokens; exp(mu + sigma**2 / 2)."""
    sigma: Positive | None = None
    """Standard deviation of the natural logarithm of the length."""
    percentiles: Percentiles | None = None
    """Exactly two, between p0 and p100 exclusive, for example {p50: 300, p99: 2000}."""

    @model_validator(mode="after")
    def _check(self) -> LognormalLength:
        if self.percentiles is not None:
            if self.median is not None or self.mean is not None or self.sigma is not None:
                raise problem("percentiles", "excludes median, mean and sigma. Keep one way")
            points = percentile_points(self.percentiles)
            if len(points) != 2 or points[0][0] <= 0 or points[1][0] >= 100 or points[0][0] == points[1][0]:
                raise problem("percentiles", "must be exactly two, for example {p50: 300, p99: 2000}")
        elif self.sigma is None or (self.median is None) == (self.mean is None):
            raise problem("", "needs sigma and one of median and mean, or two percentiles")
        return self


class PercentilesLength(_Clamped):
    """Any shape that has the stated percentiles: lognormal pieces between them and beyond the outermost two.

    p0 and p100, where given, are the bounds.
    """

    kind: Literal["percentiles"]
    percentiles: Percentiles
    """At least two between p0 and p100 exclusive, for example {p50: 300, p90: 900, p99: 2000}."""

    @model_validator(mode="after")
    def _check(self) -> PercentilesLength:
        inner = {percent for percent, _ in percentile_points(self.percentiles) if 0 < percent < 100}
        if len(inner) < 2:
            raise problem("percentiles", "needs at least two between p0 and p100, for example {p50: 300, p99: 2000}")
        return self


class ZipfLength(Spec):
    """P(length = low + k) proportional to (k + 1) ** -exponent, up to `high`."""

    kind: Literal["zipf"]
    exponent: NonNegative
    low: Count = 1
    high: Annotated[Count, Field(le=10_000_000)]

    @model_validator(mode="after")
    def _check(self) -> ZipfLength:
        if self.high < self.low:
            raise problem("high", f"must be at least low ({self.low}, got {self.high})")
        return self


class EmpiricalLength(_Clamped):
    """Drawn from stated values (with optional weights), or from the column of a CSV file."""

    kind: Literal["empirical"]
    values: tuple[Count, ...] | None = None
    weights: tuple[NonNegative, ...] | None = None
    path: Path | None = None
    """CSV file with a header; relative to the scenario file."""
    column: str | None = None

    @model_validator(mode="after")
    def _check(self) -> EmpiricalLength:
        if (self.values is None) == (self.path is None):
            raise problem("", "needs either values or path with column")
        if self.path is not None and self.column is None:
            raise problem("column", "is missing: name the column of the file that holds the lengths")
        if self.values is not None and not self.values:
            raise problem("values", "must not be empty")
        if self.weights is not None:
            if self.values is None or len(self.weights) != len(self.values):
                raise problem("weights", "must be one per value")
            if not sum(self.weights) > 0:
                raise problem("weights", "must not sum to 0")
        return self


def _with_kind(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"kind": "constant", "value": value}
    if isinstance(value, dict) and "kind" not in value and "percentiles" in value:
        return {"kind": "percentiles", **value}
    return value


AnyLength = Annotated[
    ConstantLength | UniformLength | NormalLength | LognormalLength | PercentilesLength | ZipfLength | EmpiricalLength,
    Field(discriminator="kind"),
]
LengthSpec = Annotated[AnyLength, BeforeValidator(_with_kind, json_schema_input_type=int | AnyLength)]


def shortest(length: LengthSpec) -> int:
    """The least number of tokens this distribution can give, as far as its parameters say."""
    match length:
        case ConstantLength():
            return length.value
        case UniformLength() | ZipfLength():
            return length.low
        case EmpiricalLength() if length.values is not None:
            return max(length.min, min(length.values))
        case _:
            return length.min
