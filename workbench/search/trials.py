"""Trials as they are worked on, stored and shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.slots import OUTCOME, Slot
from workbench.search.space import rounded

Evaluate = Callable[[int, Mapping[str, Any]], TrialOutcome]
"""(trial number, parameters) -> outcome; never raises for a trial's own fault."""
Report = Callable[["TrialRecord"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial as it is stored and shown."""

    number: int
    params: Mapping[str, Any]
    """Searched parameters only."""
    outcome: TrialOutcome
    num_lost: int = 0
    """Earlier attempts whose process died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTrial:
    """A trial that this process works on."""

    number: int
    """Of its slot: a retry goes by the number of the trial that it stands for."""
    params: Mapping[str, Any]
    handle: optuna.trial.Trial
    finished: Sequence[TrialRecord] = ()
    """What was known when it was taken, whoever found it out."""


class SweepStopped(Exception):
    """The sweep cannot go on; the message says why and what to do. Finished trials are kept."""


def to_json(record: TrialRecord) -> str:
    """What is stored of a finished trial."""
    outcome = record.outcome
    fields = {name: getattr(outcome, name) for name in type(outcome).__dataclass_fields__}
    return json.dumps({"params": dict(record.params), **fields, "state": outcome.state.value}, default=dict)


def outcome_of(trial: FrozenTrial) -> tuple[dict[str, Any], TrialOutcome]:
    """Parameters and outcome of a trial that has one."""
    fields = json.loads(trial.user_attrs[OUTCOME])
    params = fields.pop("params")
    return params, TrialOutcome(**{**fields, "state": TrialState(fields["state"])})


def record_of(slot: Slot) -> TrialRecord | None:
    """The finished trial of a slot; None while it is open."""
    trial = slot.evaluated
    if trial is not None:
        params, outcome = outcome_of(trial)
    elif slot.is_given_up:
        params = rounded(slot.attempts[-1].params)
        reason = f"given up: the process that worked on it died {slot.num_lost} times"
        outcome = TrialOutcome(state=TrialState.FAILED, reason=reason, failure_kind="process_died")
    else:
        return None
    return TrialRecord(number=slot.number, params=params, outcome=outcome, num_lost=slot.num_lost)
