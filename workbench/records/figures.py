"""A planned figure with its interval and its source, and what the cost model's error makes of a rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNKNOWN_ERROR = 0.3
"""Taken for a profile that states no error: an assumption, named as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """F of the command-line contract."""

    value: float
    low: float
    high: float
    source: str

    def to_dict(self) -> dict[str, Any]:
        """JSON types only, four digits."""
        return {
            "value": four_digits(self.value),
            "low": four_digits(self.low),
            "high": four_digits(self.high),
            "source": self.source,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedError:
    """By how much the steps of the real device may be slower or faster than predicted."""

    share: float
    source: str


def speed_error(profile: Mapping[str, Any]) -> SpeedError:
    """From a profile's facts: the largest P90 error of the operators that were used.

    A step is a sum of operators, so its relative error is at most that of its worst operator.
    """
    stated = {key: error["p90"] for key, error in profile.get("error", {}).items() if error.get("p90") is not None}
    name, kind, unmeasured = profile.get("name"), profile.get("kind"), profile.get("unmeasured") or ()
    share = min(max(stated.values(), default=0.0), 0.9)
    if not stated or (unmeasured and share < UNKNOWN_ERROR):
        of = f" for {', '.join(unmeasured)}" if stated else ""
        return SpeedError(share=UNKNOWN_ERROR, source=f"{kind} profile {name}, {UNKNOWN_ERROR:.0%} assumed{of}")
    worst = max(stated, key=lambda key: stated[key])
    return SpeedError(share=share, source=f"{kind} profile {name}, largest P90 error {share:.1%} ({worst})")


def four_digits(value: float | None) -> float | None:
    """As figures are shown; None stays None."""
    return None if value is None else float(f"{value:.4g}")
