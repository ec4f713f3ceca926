"""The main job: tune a scenario's engine parameters, confirm the winner against the default, write it all down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.scenario import Scenario, ScenarioError, scenario_to_dict
from workbench.scenario.search import Search
from workbench.search.loop import Ending, run_trials
from workbench.search.outcome import TrialState
from workbench.search.pareto import Front, find_front
from workbench.search.selection import Gain, best_trial
from workbench.search.trials import SweepStopped, TrialRecord
from workbench.services.confirm import Confirmation, confirm_finalists, scenario_to_confirm
from workbench.services.foresight import first_candidates
from workbench.services.lanes import Lanes, is_measured
from workbench.services.open_study import OpenStudy, StudyPlace, open_study
from workbench.services.shared_study import search_of
from workbench.services.trial_runs import fetch_run
from workbench.services.trials import TrialWorker
from workbench.store.atomic import TEMPORARY_PREFIX
from workbench.store.studies import save_study, trial_directory

BUDGET = "the budget"
MOST_INFEASIBLE = 2
"""Times the trials asked for that infeasible ones, which cost nothing, may come on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEvents:
    """What a skin may want to show while a sweep runs; every hook may be left out."""

    on_start: Callable[[Path, int, int], None] = lambda directory, done, total: None
    on_trial: Callable[[TrialRecord], None] = lambda record: None
    on_wait: Callable[[int], None] = lambda num_open: None
    on_confirm: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """A sweep, whole or as far as it came."""

    scenario: Scenario
    search: Search
    directory: Path
    records: Sequence[TrialRecord]
    best: TrialRecord | None
    gain: Gain | None
    seed: int
    """Of the search."""
    num_trials: int
    """Asked for."""
    repeats: Mapping[str, Sequence[float]]
    """`default` and `best` -> objective of each confirming run."""
    confirmation: Confirmation | None = None
    stopped: str | None = None
    """Why it ended early."""
    is_cut_short: bool = False
    """It ended early for another reason than the budget that was asked for."""

    @property
    def front(self) -> Front | None:
        """With several objectives, and where a trial may win."""
        return find_front(self.records, self.search.objectives) if self.search.is_pareto else None

    @property
    def default(self) -> TrialRecord | None:
        return next((record for record in self.records if record.number == 0), None)

    def to_json(self) -> dict[str, Any]:
        """The object of `workbench sweep --json`, and of `study.json`."""
        default, best = self.default, self.best
        return {
            "study": self.directory.name,
            "scenario": self.scenario.name,
            "objective": self.search.objective,
            "direction": "maximize" if self.search.maximize else "minimize",
            "seed": self.seed,
            "num_trials": self.num_trials,
            "default": None
            if default is None
            else {"params": default.params, "metrics": default.outcome.metrics, "verdict": default.outcome.verdict},
            "best": None
            if best is None
            else {"number": best.number, "params": best.params, "metrics": best.outcome.metrics},
            "gain": None
            if self.gain is None
            else {"value": self.gain.value, "low": self.gain.low, "high": self.gain.high},
            "conclusion": conclusion_of(self),
            "trials": [trial_json(record) for record in self.records],
            "pareto": None if self.front is None else self.front.to_dict(),
            "repeats": {name: list(values) for name, values in self.repeats.items()},
            "confirmation": None if self.confirmation is None else self.confirmation.to_dict(),
            "slo": None if self.scenario.slo is None else self.scenario.slo.model_dump(exclude_none=True),
            "space": {name: dimension.model_dump(exclude_none=True) for name, dimension in self.search.space.items()},
            "stopped": self.stopped,
            "scenario_resolved": scenario_to_dict(self.scenario),
        }


def trial_json(record: TrialRecord) -> dict[str, Any]:
    outcome = record.outcome
    return {
        "number": record.number,
        "state": outcome.state.value,
        "params": dict(record.params),
        "metrics": outcome.metrics,
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "objective": outcome.objective,
        "objectives": outcome.objectives,
        "rate": outcome.rate,
        "duplicate_of": outcome.duplicate_of,
        "constraints": dict(outcome.constraints),
        "run": outcome.run_path,
        "duration_s": outcome.duration_s,
        "num_lost": record.num_lost,
        "decision_fingerprint": outcome.fingerprint,
        "binding": outcome.binding,
    }


def conclusion_of(result: SweepResult) -> str:
    """One sentence that answers "so what?"."""
    if result.best is None:
        complete = [r for r in result.records if r.outcome.metrics is not None]
        if not complete:
            return "No configuration gave a result: see the reasons of the trials."
        if any(r.outcome.verdict == "VALID" for r in complete):
            return "No configuration tried keeps the SLO at this load: lower the rate, relax the SLO or add capacity."
        return "No run can be trusted: see the verdicts of the trials."
    if result.front is not None:
        return _front_in_words(result.front)
    if result.best.number == 0:
        return "The default configuration was not beaten: no significant gain over the default."
    name = result.search.objective
    default = None if result.default is None else result.default.outcome.objective
    if default == 0 and result.search.maximize:
        return f"The default configuration reached 0 in {name}, the best {result.best.outcome.objective:.4g}."
    if result.gain is None:
        return "The default configuration gave no result to compare the best one with."
    span = f"{result.gain.value:+.1%} (95% interval {result.gain.low:+.1%} to {result.gain.high:+.1%})"
    if not result.gain.is_significant:
        return f"No significant gain over the default: {span} in {result.search.objective}."
    return f"Gain over the default: {span} in {result.search.objective}."


def _front_in_words(front: Front) -> str:
    values = front.knee.outcome.objectives or {}
    knee = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
    count = "1 configuration is" if len(front.records) == 1 else f"{len(front.records)} configurations are"
    return (
        f"{count} beaten by no other in {', '.join(values)}. The knee is trial {front.knee.number} ({knee}); the front "
        f"covers {front.hypervolume:.0%} of the span tried."
    )


def winner_of(records: Sequence[TrialRecord], search: Search) -> TrialRecord | None:
    """The best trial; with several objectives the knee of the front."""
    if not search.is_pareto:
        return best_trial(records, maximize=search.maximize)
    front = find_front(records, search.objectives)
    return None if front is None else front.knee


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
        except SweepStopped as stop:
            stopped = str(stop)
        except KeyboardInterrupt:
            self._study.pause()
            stopped = "interrupted: go on with --resume"
        self._fetch_runs()
        if ending is Ending.DONE:
            self._archive.tidy(TEMPORARY_PREFIX)
        records = self._study.records()
        best = winner_of(records, self._search)
        if ending in (Ending.DONE, Ending.DEADLINE) and best is not None and not self._search.is_pareto:
            try:
                confirmation = self._confirm(records)
            except KeyboardInterrupt:
                ending, stopped = None, "interrupted while the winner was confirmed: go on with --resume"
        result = self._result(records, confirmation=confirmation, stopped=stopped, ending=ending)
        save_study(self._directory, result.to_json())
        return result

    def _confirm(self, records: Sequence[TrialRecord]) -> Confirmation:
        with ExitStack() as stack:
            workers: Sequence[TrialWorker] = self._lanes.workers
            scenario = scenario_to_confirm(self._scenario, self._search.confirm)
            if scenario != self._scenario:
                num_workers = 1 if is_measured(scenario) else len(workers)
                workers = [stack.enter_context(TrialWorker(scenario)) for _ in range(num_workers)]
            return confirm_finalists(
                self._scenario,
                self._search,
                records,
                workers=workers,
                repeats=self._search.confirm.repeats,
                on_run=self._events.on_confirm,
            )

    def _search_for(self, budget_s: float | None) -> Ending:
        begin_s = time.monotonic()
        points = [candidate.params for candidate in first_candidates(self._scenario, self._total)]
        self._study.open_for(self._total, points)
        self._events.on_start(self._directory, len(self._study.records()), self._total)
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
        return SweepResult(
            scenario=self._scenario,
            search=self._search,
            directory=self._directory,
            records=records,
            best=(confirmation and confirmation.winner) or winner_of(records, self._search),
            gain=None if confirmation is None else confirmation.gain,
            confirmation=confirmation,
            seed=self._seed,
            num_trials=self._total,
            repeats={} if confirmation is None else confirmation.repeats,
            stopped=stopped,
            is_cut_short=ending not in (Ending.DONE, Ending.DEADLINE),
        )
