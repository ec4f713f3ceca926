"""One Optuna study: trials are queued, taken, evaluated and told; each is in the storage before the next one starts."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from workbench.scenario.search import Search
from workbench.search.artifacts import FILES, RunFiles
from workbench.search.heartbeat import Heartbeat
from workbench.search.loop import run_trials
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.slots import OUTCOME, Slot, slots_of
from workbench.search.space import distributions_of, in_space, rounded, sampler_of
from workbench.search.storage import close_storage, has_heartbeats, name_objectives, retry_lost_trial
from workbench.search.trials import (
    Evaluate,
    OpenTrial,
    Report,
    SweepStopped,
    TrialRecord,
    outcome_of,
    record_of,
    to_json,
)

__all__ = ["SweepStopped", "SweepStudy", "TrialRecord"]

_log = logging.getLogger(__name__)

NUM_TRIALS = "num_trials"
PAUSED = "paused"
"""User attributes of a study."""


class SweepStudy:
    """Runs or resumes a study over `search.space`, alone or beside other processes.

    As many trials as were asked for are queued at the start, so that there are never more, whoever works on them; each
    is taken by one process and its parameters are drawn then. Of what a trial leaves its
    outcome is written first: a trial that has one is never run again, one whose process died before is.

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
        is_new: bool | None = None,
    ) -> None:
        """`is_new`: True makes the study (`DuplicatedStudyError` if there is one), False expects it (`KeyError` if
        there is none), None takes what there is."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._name = name
        self._search = search
        self._seed = seed
        # Wrapped once, or every handle on the study would read all finished trials again.
        self._storage = optuna.storages.get_storage(storage)
        self._distributions = distributions_of(search.space)
        self._default = {key: default_params[key] for key in search.space}
        self._heartbeat = Heartbeat(self._storage)
        if is_new is False:
            self._optuna = self._handle(0)
        else:
            self._optuna = optuna.create_study(
                study_name=name,
                storage=self._storage,
                directions=["maximize" if up else "minimize" for up in search.objectives.values()],
                load_if_exists=is_new is None,
            )
            name_objectives(self._optuna, search.objectives)
        if not has_heartbeats(self._storage):
            self._take_over()

    @property
    def name(self) -> str:
        return self._name

    @property
    def optuna_study(self) -> optuna.Study:
        """For Optuna's own analyses (importances, plots)."""
        return self._optuna

    @property
    def storage(self) -> BaseStorage:
        return self._storage

    def stored_runs(self) -> dict[int, RunFiles]:
        """Number of each evaluated trial whose run was stored -> its files."""
        found = {slot.number: slot.evaluated.user_attrs.get(FILES) for slot in self._slots() if slot.evaluated}
        return {number: files for number, files in found.items() if files}

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Keep JSON values with the study, for other processes and for people."""
        for name, value in facts.items():
            if self._optuna.user_attrs.get(name) != value:
                self._optuna.set_user_attr(name, value)

    def records(self) -> list[TrialRecord]:
        """All finished trials, by number."""
        return [record for slot in self._slots() if (record := record_of(slot)) is not None]

    def open_for(self, num_trials: int, candidates: Sequence[Mapping[str, Any]] = ()) -> None:
        """Queue what is missing of `num_trials`, those of earlier runs counted: first the default, then the
        `candidates`. For one process at a time; other processes work on what is queued."""
        self._optuna.set_user_attr(NUM_TRIALS, num_trials)
        self._optuna.set_user_attr(PAUSED, False)
        have = len(self._slots())
        nearby = [in_space(point, self._distributions) for point in candidates]
        points = [self._default_point(), *(point for point in nearby if point is not None)]
        for number in range(have, num_trials):
            point = points[number] if number < len(points) else None
            # As `enqueue_trial` does it; without a point the sampler draws one when the trial is taken.
            attributes = {} if point is None else {"fixed_params": point}
            self._optuna.add_trial(optuna.create_trial(state=OptunaState.WAITING, system_attrs=attributes))

    def extend(self, num_trials: int) -> None:
        """Queue what is missing of a larger number of trials, drawn by the sampler. For one process at a time."""
        have = len(self._slots())
        if num_trials <= have:
            return
        self._optuna.set_user_attr(NUM_TRIALS, num_trials)
        for _ in range(have, num_trials):
            self._optuna.add_trial(optuna.create_trial(state=OptunaState.WAITING))

    def enqueue(self, point: Mapping[str, Any]) -> None:
        """Queue one more trial with these parameters. For one process at a time."""
        self._optuna.set_user_attr(NUM_TRIALS, len(self._slots()) + 1)
        self._optuna.add_trial(
            optuna.create_trial(state=OptunaState.WAITING, system_attrs={"fixed_params": dict(point)})
        )

    def pause(self) -> None:
        """Keep every process from taking another trial, until the next `open_for`."""
        self._optuna.set_user_attr(PAUSED, True)

    @property
    def is_paused(self) -> bool:
        return bool(self._optuna.user_attrs.get(PAUSED))

    @property
    def num_open(self) -> int:
        """Trials asked for that are waiting or running, here or elsewhere."""
        return sum(not slot.is_done for slot in self._wanted())

    def take(self) -> OpenTrial | None:
        """The next waiting trial, now this process's; None when others have them all."""
        for slot in self._wanted():
            trial = slot.open_attempt
            if slot.is_done or trial is None or trial.state != OptunaState.WAITING:
                continue
            self._heartbeat.start(trial._trial_id)
            try:
                taken = self._storage.set_trial_state_values(trial._trial_id, state=OptunaState.RUNNING)
            except UpdateFinishedTrialError:
                taken = False
            if taken:
                return self._draw(slot.number, trial)
            self._heartbeat.stop(trial._trial_id)
        return None

    def finish(self, trial: OpenTrial, outcome: TrialOutcome) -> TrialRecord:
        """Write what became of a trial. If it was given to another process meanwhile, that one's result stands."""
        record = TrialRecord(number=trial.number, params=trial.params, outcome=outcome)
        try:
            trial.handle.set_user_attr(OUTCOME, to_json(record))
            self._tell(trial.handle, outcome)
        except UpdateFinishedTrialError:
            _log.warning("trial %d was given to another process: too long without a sign of life", trial.number)
        finally:
            self._heartbeat.stop(trial.handle._trial_id)
        return record

    def give_back(self, trial: OpenTrial) -> None:
        """Queue a trial again that this process cannot finish; its parameters stay."""
        trial_id = trial.handle._trial_id
        self._heartbeat.stop(trial_id)
        if OUTCOME not in self._storage.get_trial(trial_id).user_attrs:
            self._queue_again(trial_id)

    def recover(self) -> None:
        """Finish what dead processes left: trials with an outcome end, those without are queued again."""
        if not has_heartbeats(self._storage):
            return
        self._end_evaluated()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            with suppress(UpdateFinishedTrialError):  # another process saw it too; the next look does the rest
                optuna.storages.fail_stale_trials(self._optuna)
        for slot in self._slots():
            if slot.needs_retry:
                retry_lost_trial(self._optuna, slot.attempts[-1])
            for trial in slot.surplus:
                with suppress(UpdateFinishedTrialError):
                    self._storage.set_trial_state_values(trial._trial_id, state=OptunaState.FAIL)

    def run(
        self,
        evaluate: Evaluate,
        num_trials: int,
        on_trial: Report | None = None,
        candidates: Sequence[Mapping[str, Any]] = (),
    ) -> list[TrialRecord]:
        """Evaluate until `num_trials` trials are finished, counting those of earlier runs.

        Raises `SweepStopped` when failures repeat; those of earlier runs, which may have been mended since, do not
        count.
        """
        self.open_for(num_trials, candidates)
        run_trials(self, [lambda trial: evaluate(trial.number, trial.params)], on_trial=on_trial)
        return self.records()

    def close(self) -> None:
        """End the signs of life and the connections; open trials would count as dead."""
        self._heartbeat.close()
        close_storage(self._storage)

    def _slots(self) -> list[Slot]:
        return slots_of(self._optuna.get_trials(deepcopy=False))

    def _wanted(self) -> list[Slot]:
        """The slots to be worked on: what two processes may have queued beyond the number asked for is left alone."""
        return self._slots()[: self._optuna.user_attrs.get(NUM_TRIALS, 0)]

    def _handle(self, num_known: int) -> optuna.Study:
        """The study with a sampler of its own, so that what is drawn depends on the trial, not on who draws it."""
        sampler = sampler_of(self._search.sampler, self._seed, self._distributions, num_known=num_known)
        study = optuna.load_study(study_name=self._name, storage=self._storage, sampler=sampler)
        study.stop = lambda: None  # a grid that is used up stops the study, which only `optimize` can bear
        return study

    def _draw(self, number: int, trial: FrozenTrial) -> OpenTrial:
        handle = optuna.trial.Trial(self._handle(trial.number), trial._trial_id)
        for name, distribution in self._distributions.items():
            handle._suggest(name, distribution)  # keeps what was drawn before
        # Trial 0 is the default itself, even where the search bounds leave it out.
        params = dict(self._default) if number == 0 else rounded(handle.params)
        return OpenTrial(number=number, params=params, handle=handle, finished=self.records())

    def _default_point(self) -> dict[str, Any]:
        moved = in_space(self._default, self._distributions)
        if moved is None:
            # A choice that the search does not offer: the nearest point there is stands in for Optuna's eyes only.
            moved = {
                name: value if value in choices else choices[0]
                for name, value in self._default.items()
                for choices in [getattr(self._distributions[name], "choices", (value,))]
            }
        return moved

    def _take_over(self) -> None:
        """For the study's only process: whatever runs was left so by a dead one."""
        self._end_evaluated()
        for trial in self._optuna.get_trials(deepcopy=False, states=(OptunaState.RUNNING,)):
            self._queue_again(trial._trial_id)

    def _queue_again(self, trial_id: int) -> None:
        with suppress(UpdateFinishedTrialError):  # it was, by those who took this process for dead
            self._storage.set_trial_state_values(trial_id, state=OptunaState.WAITING)

    def _end_evaluated(self) -> None:
        """End trials whose process wrote the outcome and died, or is about to end them itself."""
        for trial in self._optuna.get_trials(deepcopy=False, states=(OptunaState.RUNNING,)):
            if OUTCOME in trial.user_attrs:
                handle = optuna.trial.Trial(self._handle(trial.number), trial._trial_id)
                with suppress(UpdateFinishedTrialError):
                    self._tell(handle, outcome_of(trial)[1])

    def _tell(self, trial: optuna.trial.Trial, outcome: TrialOutcome) -> None:
        for key, text in outcome.remarks.items():
            trial.set_user_attr(key, text)
        with warnings.catch_warnings():  # about constraints set twice, to the same values, or not used by the sampler
            warnings.simplefilter("ignore", UserWarning)
            for name, value in outcome.constraints.items():
                trial.set_constraint(name, value)
            self._end(trial, outcome)

    def _end(self, trial: optuna.trial.Trial, outcome: TrialOutcome) -> None:
        study = self._handle(trial.number)
        # CMA-ES knows no constraints: what misses the SLO is nothing to learn a rate from.
        is_blind = self._search.sampler == "cmaes" and any(value > 0 for value in outcome.constraints.values())
        values = [outcome.objective] if outcome.objectives is None else list(outcome.objectives.values())
        known = [value for value in values if value is not None]
        if outcome.state is TrialState.COMPLETE and len(known) == len(self._search.objectives) and not is_blind:
            study.tell(trial, known, skip_if_finished=True)
        elif outcome.state is not TrialState.FAILED:  # no figure, but the sampler learns to stay away
            study.tell(trial, state=OptunaState.PRUNED, skip_if_finished=True)
        else:
            study.tell(trial, state=OptunaState.FAIL, skip_if_finished=True)


def read_facts(name: str, storage: BaseStorage) -> dict[str, Any]:
    """What `set_facts` kept. Raises `KeyError` if the storage has no such study."""
    storage = optuna.storages.get_storage(storage)
    return dict(storage.get_study_user_attrs(storage.get_study_id_from_name(name)))
