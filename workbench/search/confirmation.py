"""What repeats of the finalists are evidence of: predicted against measured, and who is confirmed.

Only a complete, VALID repeat with a finite objective counts; what does not is kept with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.metrics.uncertainty import Interval, gain_of_pairs
from workbench.scenario.search import Search
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.selection import Gain
from workbench.search.trials import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One run of a finalist."""

    value: float | None
    """Its objective; None where the run is no evidence."""
    reason: str | None = None
    """Why it is none."""
    shortfalls: Mapping[str, float] = field(default_factory=dict)
    """SLO limit -> required share of requests minus share that kept it."""

    @classmethod
    def of(cls, outcome: TrialOutcome) -> Repeat:
        value, why = outcome.objective, outcome.reason or "no reason given"
        if outcome.state is not TrialState.COMPLETE:
            return cls(value=None, reason=f"{outcome.state.value}: {why}")
        if outcome.verdict != "VALID":
            return cls(value=None, reason=f"{outcome.verdict or 'not judged'}: {why}")
        if value is None or not math.isfinite(value):
            return cls(value=None, reason="the run has no such figure: no rate held, or nothing was completed")
        return cls(value=value, shortfalls=dict(outcome.constraints))


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """One finalist, or the default, with its repeats."""

    record: TrialRecord
    repeats: tuple[Repeat, ...]

    @property
    def measured(self) -> tuple[float | None, ...]:
        """Objective of each repeat; None where it is no evidence."""
        return tuple(repeat.value for repeat in self.repeats)

    @property
    def values(self) -> list[float]:
        return [value for value in self.measured if value is not None]

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None

    @property
    def error(self) -> float | None:
        """predicted / measured - 1: how much better the search had it."""
        predicted = self.record.outcome.objective
        return None if predicted is None or not self.mean else predicted / self.mean - 1.0

    @property
    def missed(self) -> tuple[str, ...]:
        """SLO limits that the counting repeats, taken together, do not keep."""
        counting = [repeat.shortfalls for repeat in self.repeats if repeat.value is not None]
        names = dict.fromkeys(name for each in counting for name in each)
        sums = {name: [each[name] for each in counting if name in each] for name in names}
        return tuple(name for name, found in sums.items() if not sum(found) <= 0)

    @property
    def doubt(self) -> str | None:
        """Why it cannot be confirmed; None where it can."""
        if not self.values:
            last = next((repeat.reason for repeat in reversed(self.repeats) if repeat.reason), "none was run")
            return f"no valid repeat ({last.partition('. ')[0]})"
        return f"misses {', '.join(self.missed)} in the repeats" if self.missed else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "number": self.record.number,
            "params": dict(self.record.params),
            "predicted": self.record.outcome.objective,
            "measured": list(self.measured),
            "reasons": [repeat.reason for repeat in self.repeats],
            "error": self.error,
            "doubt": self.doubt,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What the repeats say."""

    target: str
    """Kind of the target that was measured."""
    default: Confirmed | None = None
    finalists: tuple[Confirmed, ...] = ()
    winner: TrialRecord | None = None
    """The confirmed finalist with the best mean; None where none is confirmed."""
    gain: Gain | None = None
    """Of the winner; of the search's best where none is confirmed, but that was measured."""
    result: Interval | None = None
    """The winner's objective, widened by how far the finalists' predictions were apart from their measurements."""
    repeats: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """`default` and `best` -> objective of each round in which both were measured."""

    @property
    def doubt(self) -> str | None:
        """Why no finalist is confirmed; None where one is, or none was measured."""
        if self.winner is not None or not self.finalists:
            return None
        first, *others = self.finalists
        more = f"; nor {len(others)} more, see the report" if others else ""
        return f"trial {first.record.number} {_with_verb(first.doubt or '')}{more}"

    def to_dict(self) -> dict[str, Any]:
        result = self.result
        return {
            "target": self.target,
            "default": None if self.default is None else self.default.to_dict(),
            "finalists": [each.to_dict() for each in self.finalists],
            "winner": None if self.winner is None else self.winner.number,
            "doubt": self.doubt,
            "result": None if result is None else {"value": result.value, "low": result.low, "high": result.high},
        }


def _with_verb(doubt: str) -> str:
    return f"has {doubt}" if doubt.startswith("no ") else doubt


def finalists_of(records: Sequence[TrialRecord], search: Search, count: int) -> list[TrialRecord]:
    """The best trials that may win, the earlier of equals first."""
    able = [record for record in records if record.outcome.may_win]
    sign = -1.0 if search.maximize else 1.0
    return sorted(able, key=lambda record: (sign * (record.outcome.objective or 0.0), record.number))[:count]


def conclude(target: str, default: Confirmed | None, finalists: Sequence[Confirmed], *, maximize: bool) -> Confirmation:
    """Who is confirmed; `finalists` best first, the default among them if it is one."""
    able = [each for each in finalists if each.doubt is None]
    sign = -1.0 if maximize else 1.0
    winner = min(able, key=lambda each: sign * (each.mean or 0.0), default=None)
    leader = winner or (finalists[0] if finalists else None)
    pairs: list[tuple[float, float]] = []
    if default is not None and leader is not None:
        pairs = [
            (one, other)
            for one, other in zip(default.measured, leader.measured, strict=True)
            if one is not None and other is not None
        ]
    is_default = default is not None and winner is not None and winner.record.number == default.record.number
    return Confirmation(
        target=target,
        default=default,
        finalists=tuple(finalists),
        winner=None if winner is None else winner.record,
        gain=Gain(value=0.0, low=0.0, high=0.0) if is_default else _gain(pairs, maximize=maximize),
        result=None if winner is None else _result(winner, able),
        repeats={"default": [one for one, _ in pairs], "best": [other for _, other in pairs]} if pairs else {},
    )


def _gain(pairs: Sequence[tuple[float, float]], *, maximize: bool) -> Gain | None:
    if len(pairs) < 2 or not all(value > 0 for pair in pairs for value in pair):
        return None
    one, other = np.array(pairs).T
    interval = gain_of_pairs(one, other, maximize=maximize)
    return Gain(value=interval.value, low=interval.low, high=interval.high)


def _result(winner: Confirmed, able: Sequence[Confirmed]) -> Interval | None:
    """Student's t over the repeats, on logarithms; the variance of the finalists' prediction errors is added: what one
    configuration's figure is worth on another day or device shows in how they scatter."""
    values = winner.values
    if len(values) < 2 or not all(value > 0 for value in values):
        return None
    from scipy.stats import t as student  # slow to import and needed here only

    logs = np.log(values)
    errors = [each.error for each in able if each.error is not None and each.error > -1]
    scatter = float(np.var(np.log1p(errors), ddof=1)) if len(errors) > 1 else 0.0
    spread = math.sqrt(float(logs.var(ddof=1)) / len(logs) + scatter)
    reach = float(student.ppf(0.975, len(logs) - 1)) * spread
    center = float(logs.mean())
    return Interval(value=math.exp(center), low=math.exp(center - reach), high=math.exp(center + reach))
