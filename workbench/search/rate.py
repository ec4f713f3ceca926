"""The highest rate that a configuration sustains: monotone bracketing on a fixed ladder of rates.

The rungs are the same for every configuration (each 2 % above the one before), and every configuration is offered the
same requests, only faster or slower. So the answer does not depend on where the search began, equal configurations get
equal answers, and a difference of one rung is a difference of the configurations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.metrics.proportion import Proof

RATIO = 1.02
"""Of neighbouring rungs: what the answer is exact to."""
MOST_REQUESTS = 4
"""Times the scenario's number of requests, where an interval straddles the target."""
_FIRST_STEP = 4
_MOST_STEP = 64
_MOST_DOWN = 420
"""Rungs below the start at which nothing is hoped for any more: a factor of 4,000."""
_MOST_UP = 700
"""A factor of a million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One run at one rate."""

    rate_per_s: float
    num_requests: int
    proof: Proof
    reason: str | None = None
    """Why it does not hold."""
    is_short: bool = False
    """It holds, but lasted under a minute: a queue may not have had the time to grow."""
    served_singly: bool = False
    """No two requests were ever inside at once: at a lower rate nothing gets better."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "rate_per_s": self.rate_per_s,
            "num_requests": self.num_requests,
            "proof": self.proof.value,
            "reason": self.reason,
        }


ProbeAt = Callable[[float, int], Probe]
"""(rate, times the scenario's number of requests) -> probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateBracket:
    """Where the sustainable rate lies."""

    passed: float | None
    """The highest rate shown to hold: the answer, on the safe side. None: none did."""
    failed: float | None
    """The lowest rate shown not to hold; between the two nothing could be shown. None: none failed."""
    is_coarse: bool
    """The search ended once the rate could not beat the one to beat."""
    probes: tuple[Probe, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "failed": self.failed,
            "is_coarse": self.is_coarse,
            "probes": [probe.to_dict() for probe in self.probes],
        }


def rung(rate_per_s: float) -> int:
    """Index of the rung nearest to a rate."""
    return round(math.log(rate_per_s) / math.log(RATIO))


def rate_at(index: int) -> float:
    """Rate of a rung, with five digits: one that can be typed again."""
    return float(f"{RATIO**index:.5g}")


def find_sustainable_rate(probe: ProbeAt, start_per_s: float, *, to_beat: float | None = None) -> RateBracket:
    """Bracket the highest rate that holds, from a first guess.

    With `to_beat` the first question is whether the next higher rung holds. If not, the configuration cannot win, and
    its rate is only found coarsely: steps down until one holds, without bisection.
    """
    return _Ladder(probe).climb(rung(start_per_s), None if to_beat is None else rung(to_beat) + 1)


@dataclass(slots=True)
class _Ladder:
    """State of one search."""

    probe: ProbeAt
    known: dict[int, Probe] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)

    def climb(self, start: int, to_beat: int | None) -> RateBracket:
        first = start if to_beat is None else to_beat
        if self._holds(first):
            low = self._bisect(*self._up(first))
            return self._bracket(self._lasting(low), is_coarse=False)
        below = self._down(first)
        if below is None:
            return self._bracket(None, is_coarse=False)
        if to_beat is not None:
            return self._bracket(below[0], is_coarse=True)
        return self._bracket(self._lasting(self._bisect(*below)), is_coarse=False)

    def _holds(self, index: int) -> bool:
        return self._at(index).proof is Proof.HOLDS

    def _at(self, index: int) -> Probe:
        if index not in self.known:
            found = self._run(index, 1)
            if found.proof is Proof.UNRESOLVED:
                found = self._run(index, MOST_REQUESTS)
            self.known[index] = found
        return self.known[index]

    def _holds_long(self, index: int) -> bool:
        """It holds in a run that is no short one, or in the longest there is."""
        if self._holds(index) and self.known[index].is_short:
            self.known[index] = self._run(index, MOST_REQUESTS)
        return self._holds(index)

    def _lasting(self, low: int) -> int | None:
        """The highest rung at or below `low` that holds for long; None if none does."""
        high, step = low, 1
        if self._holds_long(low):
            return low
        while not self._holds_long(high - step):
            high, step = high - step, step * 2
            if high < low - _MOST_DOWN or self.known[high].served_singly:
                return None
        return self._bisect(high - step, high, self._holds_long)

    def _run(self, index: int, factor: int) -> Probe:
        found = self.probe(rate_at(index), factor)
        self.probes.append(found)
        return found

    def _up(self, low: int) -> tuple[int, int | None]:
        """From a rung that holds to (the highest found to hold, one above that does not)."""
        start, step = low, _FIRST_STEP
        while low + step <= start + _MOST_UP:
            if not self._holds(low + step):
                return low, low + step
            low, step = low + step, min(step * 2, _MOST_STEP)
        return low, None

    def _down(self, high: int) -> tuple[int, int] | None:
        """From a rung that does not hold to (one that does, the lowest found not to); None if none holds."""
        start, step = high, _FIRST_STEP
        while high > start - _MOST_DOWN and not self.known[high].served_singly:
            if self._holds(high - step):
                return high - step, high
            high, step = high - step, min(step * 2, _MOST_STEP)
        return None

    def _bisect(self, low: int, high: int | None, holds: Callable[[int], bool] | None = None) -> int:
        """The highest rung that holds, down to neighbours; what stays unresolved counts as not shown to hold."""
        if high is None:
            return low
        while high - low > 1:
            middle = (low + high) // 2
            if (holds or self._holds)(middle):
                low = middle
            else:
                high = middle
        return low

    def _bracket(self, passed: int | None, *, is_coarse: bool) -> RateBracket:
        broken = [
            index
            for index, probe in self.known.items()
            if probe.proof is Proof.BROKEN and (passed is None or index > passed)
        ]
        return RateBracket(
            passed=None if passed is None else rate_at(passed),
            failed=rate_at(min(broken)) if broken else None,
            is_coarse=is_coarse,
            probes=tuple(self.probes),
        )
