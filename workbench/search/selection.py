"""Who won, and by how much: chosen from finished trials, never from failed, infeasible, doubtful or empty ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workbench.search.study import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """best / default - 1 in the objective, signed so that positive is better, with a 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """The interval lies above 0."""
        return self.low > 0


def best_trial(records: Iterable[TrialRecord], *, maximize: bool) -> TrialRecord | None:
    """The best of those that may win; the earlier one of equals, so that the default wins ties."""
    best: TrialRecord | None = None
    for record in records:
        if not record.outcome.may_win:
            continue
        if best is None or _is_better(record, best, maximize=maximize):
            best = record
    return best


def _is_better(one: TrialRecord, other: TrialRecord, *, maximize: bool) -> bool:
    a, b = one.outcome.objective, other.outcome.objective
    if a is None or b is None:
        return a is not None
    return a > b if maximize else a < b
