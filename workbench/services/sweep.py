"""The main job: tune a scenario's engine parameters, confirm the winner against the default, write it all down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.scenario import Scenario, ScenarioError
from workbench.scenario.search import DEVICE_FIELDS
from workbench.search.confirmation import Confirmation
from workbench.search.loop import Ending, run_trials
from workbench.search.outcome import TrialState
from workbench.search.selection import Gain, gain_over
from workbench.search.space import distributions_of, in_space
from workbench.search.trials import SweepStopped, TrialRecord
from workbench.services.confirm import confirm_finalists, scenario_to_confirm
from workbench.services.foresight import first_candidates
from workbench.services.lanes import Lanes, is_measured
from workbench.services.launch import check_launch
from workbench.services.open_study import OpenStudy, StudyPlace, open_study
from workbench.services.shared_study import search_of
from workbench.services.sweep_result import SweepResult, find_basis, winner_of
from workbench.services.trial_runs import fetch_run
from workbench.services.trials import TrialWorker
from workbench.store.atomic import TEMPORARY_PREFIX
from workbench.store.studies import save_study, trial_directory
from workbench.workload.rate import is_recorded

MOST_INFEASIBLE = 2
"""Times the trials asked for that infeasible ones, which cost nothing, may come on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEvents:
    """What a skin may want to show while a sweep runs; every hook may be left out."""

    on_start: Callable[[Path, int, int], None] = lambda directory, done, total: None
    on_trial: Callable[[TrialRecord], None] = lambda record: None
    on_wait: Callable[[int], None] = lambda num_open: None
    on_confirm: Callable[[int, int], None] = lambda done, total: None


def run_sweep(
    scenario: Scenario,
    *,
    out: Path,
    trials: int | None = None,
    seed: int | None = None,
    resume: bool = False,
    storage: str | None = None,
    artifacts: Path | None = None,
    workers: int = 1,
    budget_s: float | None = None,
    events: SweepEvents | None = None,
) -> SweepResult:
    """Search, confirm, store; a finished trial is in the storage before the next one starts.

    `out`, `storage`, `artifacts` and `resume` as in `StudyPlace`; `workers` trials run at a time; `budget_s` after the
    search's begin no trial is started any more.

    Raises `ScenarioError` for a scenario that cannot be swept, before anything runs, `StorageError` for a storage that
    cannot be opened, and `StoreError` for a folder that cannot be written or whose study another sweep is at work on.
    """
    search = search_of(scenario)
    for target in (scenario.target, search.confirm.target):
        if target is not None and target.kind == "endpoint":
            check_launch(target)
    if workers > 1 and is_measured(scenario):
        raise ScenarioError(
            f"{scenario.name}: --workers {workers}: trials on {scenario.target.kind} engines are timed by the wall "
            "clock and would slow each other. Use --workers 1, or target.kind=simulated"
        )
    seed = seed if seed is not None else (scenario.seed if search.seed is None else search.seed)
    place = StudyPlace(out=out, storage=storage, artifacts=artifacts, resume=resume)
    with (
        open_study(scenario, seed, place) as opened,
        Lanes(scenario, opened.archive, workers, is_shared=storage is not None) as lanes,
    ):
        sweep = _Sweep(opened, scenario, lanes, seed=seed, total=trials or search.trials, events=events)
        return sweep.run(budget_s)


class _Sweep:
    """One run of the command on one study."""

    def __init__(
        self,
        opened: OpenStudy,
        scenario: Scenario,
        lanes: Lanes,
        *,
        seed: int,
        total: int,
        events: SweepEvents | None,
    ) -> None:
        self._study = opened.study
        self._directory = opened.directory
        self._archive = opened.archive
        self._scenario = scenario
        self._search = search_of(scenario)
        self._lanes = lanes
        self._seed = seed
        self._total = total
        self._events = events or SweepEvents()

    def run(self, budget_s: float | None) -> SweepResult:
        ending: Ending | None = None
        stopped: str | None = None
        confirmation: Confirmation | None = None
        try:
            ending = self._search_for(budget_s)
            if ending is Ending.PAUSED:
                stopped = "stopped by another process: go on with --resume"
            elif ending is Ending.DEADLINE:
                self._study.pause()
                stopped = f"the budget of {budget_s:g} s is used up: go on with --resume"
            else:
                self._simplify()
        except SweepStopped as stop:
            stopped = str(stop)
        except KeyboardInterrupt:
            self._study.pause()
            stopped = "interrupted: go on with --resume"
        self._fetch_runs()
        if ending is Ending.DONE:
            self._archive.tidy(TEMPORARY_PREFIX)
        records = self._study.records()
        best = self._winner(records)
        if ending in (Ending.DONE, Ending.DEADLINE) and best is not None and self._repeats_tell:
            try:
                confirmation = self._confirm(records, best)
            except KeyboardInterrupt:
                ending, stopped = None, "interrupted while the winner was confirmed: go on with --resume"
        result = self._result(records, confirmation=confirmation, stopped=stopped, ending=ending)
        save_study(self._directory, result.to_json())
        return result

    @property
    def _is_predicted(self) -> bool:
        """The search runs on a cost model."""
        return self._scenario.target.kind == "simulated"

    @property
    def _repeats_tell(self) -> bool:
        """Repeats may come out otherwise than the search: not where a simulator replays the same recorded load."""
        if self._search.is_pareto:
            return False
        return not (self._is_predicted and self._search.confirm.target is None and is_recorded(self._scenario))

    def _winner(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        error = find_basis(self._scenario, records, None).error_p90 if self._is_predicted else None
        return winner_of(records, self._search, error)

    def _simplify(self) -> None:
        """Put the default's values back, one parameter at a time, wherever the winner loses nothing by it."""
        if not self._is_predicted or self._search.is_pareto:
            return
        self._lanes.resolves_ties = True
        while (point := self._simpler_point()) is not None:
            self._study.enqueue(point)
            run_trials(self._study, self._lanes.evaluators(), on_trial=self._on_trial_added, on_abort=self._lanes.close)

    def _simpler_point(self) -> dict[str, Any] | None:
        """The winner with one of the default's values; None where each was tried."""
        records = self._study.records()
        best = self._winner(records)
        default = next((record for record in records if record.number == 0), None)
        if best is None or default is None or best.number == 0:
            return None
        tried = [dict(record.params) for record in records]
        points = [{**best.params, name: value} for name, value in default.params.items() if name not in DEVICE_FIELDS]
        distributions = distributions_of(self._search.space)  # a default beyond the bounds is not among its points
        return next((each for each in points if each not in tried and in_space(each, distributions) == each), None)

    def _on_trial_added(self, record: TrialRecord) -> None:
        self._fetch_runs()
        self._events.on_trial(record)

    def _confirm(self, records: Sequence[TrialRecord], best: TrialRecord) -> Confirmation:
        with ExitStack() as stack:
            workers: Sequence[TrialWorker] = self._lanes.workers
            scenario = scenario_to_confirm(self._scenario, self._search.confirm)
            if scenario != self._scenario:
                num_workers = 1 if is_measured(scenario) else len(workers)
                workers = [stack.enter_context(TrialWorker(scenario)) for _ in range(num_workers)]
            is_plain = self._is_predicted and self._search.confirm.target is None
            return confirm_finalists(
                self._scenario,
                self._search,
                [record for record in records if record.number in (0, best.number)] if is_plain else records,
                workers=workers,
                repeats=self._search.confirm.repeats,
                on_run=self._events.on_confirm,
            )

    def _search_for(self, budget_s: float | None) -> Ending:
        points = [candidate.params for candidate in first_candidates(self._scenario, self._total)]
        self._study.open_for(self._total, points)
        self._events.on_start(self._directory, len(self._study.records()), self._total)
        begin_s = time.monotonic()  # not earlier: the shortest budget is for trials, and gives one
        return run_trials(
            self._study,
            self._lanes.evaluators(),
            on_trial=self._on_trial,
            on_wait=self._events.on_wait,
            on_abort=self._lanes.close,
            deadline_s=None if budget_s is None else begin_s + budget_s,
        )

    def _on_trial(self, record: TrialRecord) -> None:
        self._fetch_runs()
        records = self._study.records()
        num_infeasible = sum(each.outcome.state is TrialState.INFEASIBLE for each in records)
        self._study.extend(self._total + min(num_infeasible, self._total * MOST_INFEASIBLE))
        save_study(self._directory, self._result(records).to_json())
        self._events.on_trial(record)

    def _gain(
        self,
        records: Sequence[TrialRecord],
        best: TrialRecord | None,
        confirmation: Confirmation | None,
        ending: Ending | None,
    ) -> Gain | None:
        """Of the repeats; of the search alone where a simulator's repeats tell nothing. A prediction's interval holds
        the model's error."""
        default = next((record for record in records if record.number == 0), None)
        gain = None if confirmation is None else confirmation.gain
        is_final = ending in (Ending.DONE, Ending.DEADLINE)
        if confirmation is None and is_final and self._is_predicted and not self._search.is_pareto:
            gain = None if default is None or best is None else gain_over(default, best, maximize=self._search.maximize)
        error = find_basis(self._scenario, records, best).error_p90
        is_prediction = confirmation is None or confirmation.target == "simulated"
        if gain is None or gain.value == 0.0 or error is None or not is_prediction:
            return gain
        return gain.with_error(error)

    def _fetch_runs(self) -> None:
        """Bring the runs of finished trials, whoever ran them, into the study's folder."""
        for number, files in self._study.stored_runs().items():
            directory = trial_directory(self._directory, number)
            if not directory.exists():
                fetch_run(self._archive, files, directory)

    def _result(
        self,
        records: Sequence[TrialRecord],
        *,
        confirmation: Confirmation | None = None,
        stopped: str | None = None,
        ending: Ending | None = None,
    ) -> SweepResult:
        best = (confirmation and confirmation.winner) or self._winner(records)
        return SweepResult(
            scenario=self._scenario,
            search=self._search,
            directory=self._directory,
            records=records,
            best=best,
            gain=self._gain(records, best, confirmation, ending),
            confirmation=confirmation,
            seed=self._seed,
            num_trials=self._total,
            repeats={} if confirmation is None else confirmation.repeats,
            stopped=stopped,
            is_cut_short=ending not in (Ending.DONE, Ending.DEADLINE),
        )
