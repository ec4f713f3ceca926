"""Accounting of trials that many processes work on: which of a study's trials stand for one and the same configuration.

A study starts with as many waiting trials as were asked for. Each is a *slot*: it is taken by one process at a time,
and when that process dies, another trial that names its origin takes its place. Everything here is a function of what
the storage holds, so that any process, at any time, comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

OUTCOME = "outcome"
"""User attribute whose presence says that the trial was evaluated, whatever became of its process afterwards."""
ORIGIN = "failed_trial"
HISTORY = "retry_history"
"""System attributes of a retry, by the names that Optuna's own retry callback gives them: the first trial of the slot,
and all that were lost before this one."""
MAX_LOST = 10
"""A configuration whose process dies this often is given up: it may be what kills it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One of the trials that were asked for, with its retries."""

    number: int
    """Of its first trial; what people and files call it."""
    attempts: tuple[FrozenTrial, ...]
    """By number."""

    @property
    def evaluated(self) -> FrozenTrial | None:
        """The attempt whose outcome counts: the first that has one, so that no slot counts twice."""
        return next((trial for trial in self.attempts if OUTCOME in trial.user_attrs), None)

    @property
    def open_attempt(self) -> FrozenTrial | None:
        """The attempt that is waiting or running; the first, where a race has left two."""
        return next((trial for trial in self.attempts if not trial.state.is_finished()), None)

    @property
    def num_lost(self) -> int:
        """Attempts that ended without an outcome: their processes died."""
        return sum(trial.state.is_finished() and OUTCOME not in trial.user_attrs for trial in self.attempts)

    @property
    def is_given_up(self) -> bool:
        return self.evaluated is None and self.num_lost >= MAX_LOST

    @property
    def is_done(self) -> bool:
        return self.evaluated is not None or self.is_given_up

    @property
    def needs_retry(self) -> bool:
        """Its process died and nobody has put another trial in its place (the one that should have may have died)."""
        return not self.is_done and self.open_attempt is None

    @property
    def surplus(self) -> Sequence[FrozenTrial]:
        """Waiting attempts that nobody needs any more."""
        keep = None if self.is_done else self.open_attempt
        return [trial for trial in self.attempts if trial.state == OptunaState.WAITING and trial is not keep]


def slots_of(trials: Iterable[FrozenTrial]) -> list[Slot]:
    """All slots, by number. `trials` come by number, as storages give them."""
    attempts: dict[int, list[FrozenTrial]] = {}
    for trial in trials:
        attempts.setdefault(trial.system_attrs.get(ORIGIN, trial.number), []).append(trial)
    return [Slot(number=number, attempts=tuple(found)) for number, found in sorted(attempts.items())]


def retry_attributes(lost: FrozenTrial) -> dict[str, Any]:
    """System attributes of the trial that takes the place of `lost`: the link to its origin and what its sampler
    needs (a fixed or a grid point), without what the dead process left."""
    kept = {key: value for key, value in lost.system_attrs.items() if not key.startswith(("artifacts:", "constraints"))}
    return {
        **kept,
        ORIGIN: lost.system_attrs.get(ORIGIN, lost.number),
        HISTORY: [*lost.system_attrs.get(HISTORY, []), lost.number],
    }
