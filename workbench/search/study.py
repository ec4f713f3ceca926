"""One Optuna study: ask, evaluate, tell; every finished trial is on disk before the next one starts."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from workbench.scenario.search import Search
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.space import distributions_of, in_space, rounded, sampler_of

_log = logging.getLogger(__name__)

MAX_EQUAL_FAILURES = 5
"""A sweep stops after this many failures of the same kind in a row."""

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


class SweepStopped(Exception):
    """The sweep cannot go on; the message says why and what to do. Finished trials are kept."""


def open_storage(path: Path) -> BaseStorage:
    """The default storage: a journal file next to the study's other files; appends survive a kill.

    For the study's only writer: what a killed one left of its last line and its lock is cleared away. Raises
    `ValueError` for a file that is no journal.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with path.open("rb+") as journal:
            whole, newline, _ = journal.read().rpartition(b"\n")
            journal.truncate(len(whole) + len(newline))
    Path(f"{path}.lock").unlink(missing_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


class SweepStudy:
    """Runs or resumes a study over `search.space`.

    Infeasible trials enter Optuna as pruned (the sampler learns to avoid them), failed ones as failed; our own state
    is kept with each trial and is what everything else reads.
    """

    def __init__(
        self,
        name: str,
        search: Search,
        *,
        seed: int,
        storage: BaseStorage,
        default_params: Mapping[str, Any],
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._search = search
        self._distributions = distributions_of(search.space)
        self._default = {key: default_params[key] for key in search.space}
        self._optuna = optuna.create_study(
            study_name=name,
            storage=storage,
            sampler=sampler_of(search.sampler, seed, self._distributions),
            direction="maximize" if search.maximize else "minimize",
            load_if_exists=True,
        )
        num_known = len(self._optuna.trials)
        if num_known:
            # A sampler that began again would draw the points once more that it drew before the interruption.
            self._optuna.sampler = sampler_of(search.sampler, seed, self._distributions, num_known=num_known)
        else:
            self._enqueue_default()
        self._interrupted = self._find_interrupted()

    @property
    def optuna_study(self) -> optuna.Study:
        """For Optuna's own analyses (importances, plots)."""
        return self._optuna

    def records(self) -> list[TrialRecord]:
        """All finished trials, by number."""
        trials = self._optuna.get_trials(deepcopy=False)
        return [_record(trial) for trial in trials if trial.state.is_finished() and "outcome" in trial.user_attrs]

    def run(self, evaluate: Evaluate, num_trials: int, on_trial: Report | None = None) -> list[TrialRecord]:
        """Evaluate until `num_trials` trials are finished, counting those of earlier runs.

        Raises `SweepStopped` when failures repeat; those of earlier runs, which may have been mended since, do not
        count.
        """
        fresh: list[TrialRecord] = []
        while True:
            finished = self.records()
            _check_failures(fresh)
            if len(finished) >= num_trials:
                return finished
            trial = self._interrupted.pop(0) if self._interrupted else self._optuna.ask(self._distributions)
            # Trial 0 is the default itself, even where the search bounds leave it out.
            params = dict(self._default) if trial.number == 0 else rounded(trial.params)
            record = TrialRecord(number=trial.number, params=params, outcome=evaluate(trial.number, params))
            self._tell(trial, record)
            fresh.append(record)
            if on_trial is not None:
                on_trial(record)

    def _enqueue_default(self) -> None:
        moved = in_space(self._default, self._distributions)
        if moved is None:
            # A choice that the search does not offer: the nearest point there is stands in for Optuna's eyes only.
            moved = {
                name: value if value in choices else choices[0]
                for name, value in self._default.items()
                for choices in [getattr(self._distributions[name], "choices", (value,))]
            }
        self._optuna.enqueue_trial(moved)

    def _find_interrupted(self) -> list[optuna.Trial]:
        """Trials that a killed sweep left running, to be evaluated under their own numbers; those whose outcome it had
        already written are ended here."""
        handles = []
        for trial in self._optuna.get_trials(deepcopy=False, states=(OptunaState.RUNNING,)):
            handle = optuna.trial.Trial(self._optuna, trial._trial_id)
            if "outcome" in trial.user_attrs:
                with warnings.catch_warnings():  # about constraints that the killed sweep had set, to the same values
                    warnings.simplefilter("ignore", UserWarning)
                    self._tell(handle, _record(trial))
                continue
            for name, distribution in self._distributions.items():
                handle._suggest(name, distribution)  # keeps what was drawn before the kill
            handles.append(handle)
        return handles

    def _tell(self, trial: optuna.Trial, record: TrialRecord) -> None:
        outcome = record.outcome
        trial.set_user_attr("outcome", _to_json(record))
        for name, value in outcome.constraints.items():
            trial.set_constraint(name, value)
        if outcome.state is TrialState.COMPLETE and outcome.objective is not None:
            self._optuna.tell(trial, outcome.objective)
        elif outcome.state in (TrialState.INFEASIBLE, TrialState.PRUNED):
            self._optuna.tell(trial, state=OptunaState.PRUNED)
        else:
            self._optuna.tell(trial, state=OptunaState.FAIL)


def _check_failures(fresh: Sequence[TrialRecord]) -> None:
    ours = [record for record in fresh if record.outcome.state is not TrialState.INFEASIBLE]
    if len(ours) == 1 and ours[0].number == 0 and ours[0].outcome.state is TrialState.FAILED:
        _log.warning("the default configuration failed: %s", ours[0].outcome.reason)
    last = ours[-MAX_EQUAL_FAILURES:]
    kinds = {record.outcome.failure_kind for record in last}
    all_failed = all(record.outcome.state is TrialState.FAILED for record in last)
    if len(last) == MAX_EQUAL_FAILURES and all_failed and len(kinds) == 1:
        raise SweepStopped(
            f"{MAX_EQUAL_FAILURES} trials in a row failed in the same way ({last[-1].outcome.reason}). "
            "Mend that, then go on with --resume"
        )


def _to_json(record: TrialRecord) -> str:
    outcome = record.outcome
    fields = {name: getattr(outcome, name) for name in type(outcome).__dataclass_fields__}
    return json.dumps({"params": dict(record.params), **fields, "state": outcome.state.value}, default=dict)


def _record(trial: FrozenTrial) -> TrialRecord:
    fields = json.loads(trial.user_attrs["outcome"])
    params = fields.pop("params")
    return TrialRecord(
        number=trial.number, params=params, outcome=TrialOutcome(**{**fields, "state": TrialState(fields["state"])})
    )
