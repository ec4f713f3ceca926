"""The highest rate that a configuration sustains: monotone bracketing on a fixed ladder of rates.

The rungs are the same for every configuration (each 2 % above the one before), and every configuration is offered the
same draws of requests, only faster or slower. So the answer does not depend on where the search began, equal
configurations get equal answers, and a difference of one rung is a difference of the configurations.
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
_MOST_DRAWS = 3
"""Of a rung that decides the answer."""
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
    is_repeatable: bool = False
    """Another draw would show the same: a recorded load on a virtual clock."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "rate_per_s": self.rate_per_s,
            "num_requests": self.num_requests,
            "proof": self.proof.value,
            "reason": self.reason,
        }


ProbeAt = Callable[[float, int, int], Probe]
"""(rate, times the scenario's number of requests, number of the draw) -> probe. Draws are equally long loads whose
arrivals and lengths differ."""


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
    contested: tuple[float, ...] = ()
    """Rates that held in one draw of the load and were not shown to in another, ascending."""

    @property
    def low(self) -> float | None:
        """The lower end of what the draws allow: every rate up to it held whenever it was tried."""
        if self.passed is None or not self.contested:
            return self.passed
        return min(self.passed, rate_at(rung(self.contested[0]) - 1))

    @property
    def high(self) -> float | None:
        """The upper end: no draw held above it. None: no rate failed."""
        if self.failed is None or not self.contested:
            return self.failed
        return max(self.failed, rate_at(rung(self.contested[-1]) + 1))

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "failed": self.failed,
            "low": self.low,
            "high": self.high,
            "contested": list(self.contested),
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

    The two rungs that decide the answer, the highest that holds and the next above it, are tried again with another
    draw of the load, and a third time where the two contradict each other: no single burst caps the ladder.

    With `to_beat` the first question is whether the next higher rung holds. If not, the configuration cannot win, and
    its rate is only found coarsely: steps down until one holds, without bisection.
    """
    return _Ladder(probe).climb(rung(start_per_s), None if to_beat is None else rung(to_beat) + 1)


@dataclass(slots=True)
class _Rung:
    """The draws of one rate so far; of each draw the last probe counts."""

    draws: list[Probe] = field(default_factory=list)
    factor: int = 1
    """Times the scenario's requests that the last draw took."""

    @property
    def balance(self) -> int:
        """Draws that hold less draws that are not shown to."""
        return sum(1 if draw.proof is Proof.HOLDS else -1 for draw in self.draws)

    @property
    def holds(self) -> bool:
        return self.balance > 0

    @property
    def is_settled(self) -> bool:
        """A second draw agrees with the first, or a third has decided."""
        return self.draws[0].is_repeatable or len(self.draws) >= (_MOST_DRAWS if self.balance == 0 else 2)

    @property
    def is_broken(self) -> bool:
        """Most draws show that it does not hold; what stays open shows nothing."""
        return 2 * sum(draw.proof is Proof.BROKEN for draw in self.draws) > len(self.draws)

    @property
    def is_contested(self) -> bool:
        return abs(self.balance) < len(self.draws)


@dataclass(slots=True)
class _Ladder:
    """State of one search."""

    probe: ProbeAt
    known: dict[int, _Rung] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)

    def climb(self, start: int, to_beat: int | None) -> RateBracket:
        first = start if to_beat is None else to_beat
        if self._holds(first) or (to_beat is not None and self._settles(first)):
            low: int | None = self._lasting(self._bisect(*self._up(first)))
        else:
            below = self._down(first)
            if below is None:
                return self._bracket(None, is_coarse=False)
            if to_beat is not None:
                return self._bracket(below[0], is_coarse=True)
            low = self._lasting(self._bisect(*below))
        return self._bracket(self._confirmed(low), is_coarse=False)

    def _confirmed(self, low: int | None) -> int | None:
        """Settle the two rungs that decide; go on from where they turn out otherwise."""
        while low is not None:
            if low + 1 in self.known and self._settles(low + 1):
                low = self._lasting(self._bisect(*self._up(low + 1, self._settles), self._settles))
            elif not self._settles(low):
                below = self._down(low)
                low = None if below is None else self._lasting(self._bisect(*below))
            else:
                return low
        return None

    def _holds(self, index: int) -> bool:
        if index not in self.known:
            self.known[index] = _Rung()
            self._draw(index, 1)
        return self.known[index].holds

    def _holds_long(self, index: int) -> bool:
        """It holds in a run that is no short one, or in the longest there is."""
        if self._holds(index) and self.known[index].draws[-1].is_short:
            self.known[index].draws.pop()  # the same draw, longer
            self._draw(index, MOST_REQUESTS)
        return self._holds(index)

    def _settles(self, index: int) -> bool:
        """Does it hold in most draws? As many are made as it takes to tell."""
        self._holds(index)
        while not self.known[index].is_settled:
            self._draw(index, self.known[index].factor)
        return self.known[index].holds

    def _draw(self, index: int, factor: int) -> None:
        """Make one draw; one that leaves it open is made again with more requests."""
        entry = self.known[index]
        number = len(entry.draws)
        found = self._run(index, factor, number)
        if found.proof is Proof.UNRESOLVED and factor < MOST_REQUESTS:
            factor = MOST_REQUESTS
            found = self._run(index, factor, number)
        entry.draws.append(found)
        entry.factor = factor

    def _run(self, index: int, factor: int, draw: int) -> Probe:
        found = self.probe(rate_at(index), factor, draw)
        self.probes.append(found)
        return found

    def _lasting(self, low: int) -> int | None:
        """The highest rung at or below `low` that holds for long; None if none does."""
        high, step = low, 1
        if self._holds_long(low):
            return low
        while not self._holds_long(high - step):
            high, step = high - step, step * 2
            if high < low - _MOST_DOWN or self.known[high].draws[-1].served_singly:
                return None
        return self._bisect(high - step, high, self._holds_long)

    def _up(self, low: int, holds: Callable[[int], bool] | None = None) -> tuple[int, int | None]:
        """From a rung that holds to (the highest found to hold, one above that does not)."""
        start, step = low, _FIRST_STEP
        while low + step <= start + _MOST_UP:
            if not (holds or self._holds)(low + step):
                return low, low + step
            low, step = low + step, min(step * 2, _MOST_STEP)
        return low, None

    def _down(self, high: int) -> tuple[int, int] | None:
        """From a rung that does not hold to (one that does, the lowest found not to); None if none holds."""
        start, step = high, _FIRST_STEP
        while high > start - _MOST_DOWN and not self.known[high].draws[-1].served_singly:
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
        broken = [index for index, each in self.known.items() if each.is_broken and (passed is None or index > passed)]
        return RateBracket(
            passed=None if passed is None else rate_at(passed),
            failed=rate_at(min(broken)) if broken else None,
            is_coarse=is_coarse,
            probes=tuple(self.probes),
            contested=tuple(rate_at(index) for index in sorted(self.known) if self.known[index].is_contested),
        )
