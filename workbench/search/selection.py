"""Who won, and by how much: chosen from finished trials, never from failed, infeasible, doubtful or empty ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workbench.search.study import TrialRecord

_TIE = 0.0201
"""Share by which two trials differ at most that are taken for equal: a rung of the ladder of rates."""


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

    def with_error(self, share: float) -> Gain:
        """Return the gain of a prediction: its interval holds an error of `share` of the model behind it."""
        return Gain(
            value=self.value,
            low=(1.0 + self.low) / (1.0 + share) - 1.0,
            high=(1.0 + self.high) * (1.0 + share) - 1.0,
        )


def gain_over(default: TrialRecord, best: TrialRecord, *, maximize: bool) -> Gain | None:
    """Return the gain that the search itself shows, without an interval; None where there is nothing to compare."""
    one, other = default.outcome.objective, best.outcome.objective
    if not one or not other or one < 0 or other < 0:
        return None
    value = (other / one if maximize else one / other) - 1.0
    return Gain(value=value, low=value, high=value)


def plainest_winner(records: Sequence[TrialRecord], *, maximize: bool, error: float) -> TrialRecord | None:
    """Return the trial to deploy among simulated ones: the default where no other is better by more than the model's
    error; else, of those within a rung of the best, the one that changes fewest of the default's values."""
    best = best_trial(records, maximize=maximize)
    default = next((record for record in records if record.number == 0), None)
    if best is None or default is None:
        return best
    gain = gain_over(default, best, maximize=maximize) if default.outcome.may_win else None
    if gain is not None and gain.value <= error:
        return default
    near = [
        record
        for record in records
        if record.outcome.may_win and (_lost(record, best, maximize=maximize) <= _TIE or record is best)
    ]
    return min(near, key=lambda record: (num_changed(record, default), _lost(record, best, maximize=maximize)))


def num_changed(record: TrialRecord, default: TrialRecord) -> int:
    """Count the parameters that differ from the default's."""
    return sum(record.params.get(name) != value for name, value in default.params.items())


def _lost(record: TrialRecord, best: TrialRecord, *, maximize: bool) -> float:
    """Share of the best's objective that a trial lacks."""
    gain = gain_over(record, best, maximize=maximize)
    return float("inf") if gain is None else gain.value


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
