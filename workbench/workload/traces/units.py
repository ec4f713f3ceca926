"""The unit of arrival times, from the data: formats are rewritten in other units, and then their names say nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

UNIT_SECONDS: dict[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_EPOCH_S = (1e9, 4.1e9)
"""Seconds since 1970 of the years 2001 to 2099."""
_ENOUGH = 20
"""Rows in which whole numbers are no accident."""
_USUAL = {"s": 1.5, "ms": 1.0}
_EPOCH, _FRACTIONS, _WHOLE = 4.0, 1.0, 1.0
"""How many powers of ten of the rate a sign is worth: the format's own unit, dates of this century, decimals where the
format counts whole milliseconds; against seconds, whole numbers in each of enough rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredUnit:
    """A unit, and how it was chosen."""

    unit: str
    sentence: str


def infer_unit(times: Sequence[float], usual: str, trust: float = 0.0) -> InferredUnit:
    """Return the unit in which the rate of the first rows is nearest to one request per second, other signs weighed in.

    `usual` is the format's own unit, kept where the rows have no span; `trust` what it is worth beyond the usual.
    """
    times = sorted(times)
    trimmed = len(times) // 20  # a few odd rows decide nothing
    times = times[trimmed : len(times) - trimmed]
    gap = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
    if gap <= 0:
        return InferredUnit(unit=usual, sentence=f"arrival times are taken to be in {usual}")
    has_fractions = any(not float(time).is_integer() for time in times)

    def distance(unit: str) -> float:
        seconds = UNIT_SECONDS[unit]
        found = abs(math.log10(1.0 / (gap * seconds))) - (_USUAL[usual] + trust) * (unit == usual)
        is_epoch = all(_EPOCH_S[0] <= time * seconds <= _EPOCH_S[1] for time in times)
        is_odd = unit == usual == "s" and not has_fractions and len(times) >= _ENOUGH
        signs = _EPOCH * is_epoch + _FRACTIONS * (has_fractions and unit == "s" and usual == "ms") - _WHOLE * is_odd
        return found - signs

    unit = min(UNIT_SECONDS, key=distance)
    text = f"arrival times are in {unit}, inferred from the data: {1.0 / (gap * UNIT_SECONDS[unit]):,.4g} requests/s"
    if unit != usual:
        text += f" (in {usual}, the format's own unit, it would be {1.0 / (gap * UNIT_SECONDS[usual]):,.4g}/s)"
    return InferredUnit(unit=unit, sentence=text)
