"""The main job: tune a scenario's engine parameters, confirm the winner against the default, write it all down."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.metrics.uncertainty import gain_of_pairs
from workbench.scenario import Scenario, ScenarioError, engine_spec, scenario_to_dict
from workbench.scenario.search import Search
from workbench.search.outcome import TrialOutcome
from workbench.search.selection import Gain, best_trial
from workbench.search.study import SweepStopped, SweepStudy, TrialRecord, open_storage
from workbench.services.trials import TrialWorker
from workbench.store.errors import StoreError
from workbench.store.studies import (
    STUDY_FILE,
    load_study,
    remove_unfinished,
    save_study,
    sole_writer,
    trial_directory,
)

JOURNAL = "journal.log"
NUM_REPEATS = 3
"""Runs of default and winner, in turn, that the stated gain rests on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEvents:
    """What a skin may want to show while a sweep runs; every hook may be left out."""

    on_start: Callable[[Path, int, int], None] = lambda directory, done, total: None
    on_trial: Callable[[TrialRecord], None] = lambda record: None
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
    stopped: str | None = None
    """Why it ended early."""

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
            "repeats": {name: list(values) for name, values in self.repeats.items()},
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
        "constraints": dict(outcome.constraints),
        "run": outcome.run_path,
        "duration_s": outcome.duration_s,
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


def run_sweep(
    scenario: Scenario,
    *,
    out: Path,
    trials: int | None = None,
    seed: int | None = None,
    resume: bool = False,
    events: SweepEvents | None = None,
) -> SweepResult:
    """Search, confirm, store; a finished trial is on disk before the next one starts.

    Raises `ScenarioError` for a scenario that cannot be swept, before anything runs, and `StoreError` for a folder that
    cannot be written or whose study another sweep is at work on.
    """
    search = scenario.search
    if search is None:
        raise ScenarioError(f"{scenario.name}: search: is missing: a sweep needs a search section with a space")
    if scenario.target.kind == "endpoint":
        raise ScenarioError(
            f"{scenario.name}: target: an endpoint cannot be swept, its parameters are set where it was started. "
            "Use kind: embedded or simulated"
        )
    events = events or SweepEvents()
    seed = seed if seed is not None else (scenario.seed if search.seed is None else search.seed)
    total = trials or search.trials
    directory = study_directory(scenario, seed, out, resume=resume)
    with sole_writer(directory):
        study = _open_study(directory, scenario, search, seed)
        events.on_start(directory, len(study.records()), total)
        return _run_study(study, directory, scenario, search, seed=seed, total=total, events=events)


def _open_study(directory: Path, scenario: Scenario, search: Search, seed: int) -> SweepStudy:
    """The study in its folder, without what a killed sweep left half done. Raises `StoreError`."""
    default, journal = default_params(scenario, search), directory / JOURNAL
    is_new = not journal.exists()
    try:
        study = SweepStudy(directory.name, search, seed=seed, storage=open_storage(journal), default_params=default)
        finished = {record.number for record in study.records()}
    except OSError as error:
        raise StoreError(f"{journal}: cannot be written ({error.strerror or error})") from error
    except Exception as error:  # a broken journal may break Optuna in any way
        if is_new:
            raise
        reason = f"{type(error).__name__}: {error}"[:120]
        raise StoreError(f"{journal}: cannot be read ({reason}). Start a study without --resume") from error
    if lost := _trials_shown(directory) - finished:
        raise StoreError(
            f"{journal}: lacks {len(lost)} trials that {STUDY_FILE} has, so it is not whole. Start a study without "
            "--resume"
        )
    remove_unfinished(directory, finished)
    return study


def _trials_shown(directory: Path) -> set[int]:
    """Numbers of the trials in `study.json`, which is written after the journal."""
    try:
        return {trial["number"] for trial in load_study(directory)["trials"]}
    except (StoreError, KeyError, TypeError):
        return set()


def _run_study(
    study: SweepStudy,
    directory: Path,
    scenario: Scenario,
    search: Search,
    *,
    seed: int,
    total: int,
    events: SweepEvents,
) -> SweepResult:
    stopped = None

    def result_of(
        records: Sequence[TrialRecord],
        *,
        gain: Gain | None = None,
        repeats: Mapping[str, Sequence[float]] | None = None,
        stopped: str | None = None,
    ) -> SweepResult:
        return SweepResult(
            scenario=scenario,
            search=search,
            directory=directory,
            records=records,
            best=best_trial(records, maximize=search.maximize),
            gain=gain,
            seed=seed,
            num_trials=total,
            repeats=repeats or {},
            stopped=stopped,
        )

    with TrialWorker(scenario) as worker:

        def evaluate(number: int, params: Mapping[str, Any]) -> TrialOutcome:
            return worker.evaluate(params, directory=trial_directory(directory, number))

        def on_trial(record: TrialRecord) -> None:
            save_study(directory, result_of(study.records()).to_json())
            events.on_trial(record)

        try:
            study.run(evaluate, total, on_trial)
        except SweepStopped as stop:
            stopped = str(stop)
        except KeyboardInterrupt:
            stopped = "interrupted: go on with --resume"
        records = study.records()
        best = best_trial(records, maximize=search.maximize)
        gain: Gain | None = None
        repeats: dict[str, list[float]] = {}
        if stopped is None and best is not None:
            try:
                gain, repeats = _confirm(worker, scenario, search, records, best, events)
            except KeyboardInterrupt:
                stopped = "interrupted while the winner was confirmed: go on with --resume"
    result = result_of(records, gain=gain, repeats=repeats, stopped=stopped)
    save_study(directory, result.to_json())
    return result


def default_params(scenario: Scenario, search: Search) -> dict[str, Any]:
    """The scenario's own engine values of the searched parameters (the engine's defaults where it sets none)."""
    values = engine_spec(scenario).to_dict()
    return {name: values[name] for name in search.space}


def study_directory(scenario: Scenario, seed: int, out: Path, *, resume: bool) -> Path:
    """`out/NAME-HASH`, the hash over everything that defines the study; a new one gets the next free number.

    With `resume` the newest study of this very definition, so that trials of different definitions never mix.
    """
    text = json.dumps([scenario_to_dict(scenario), seed], sort_keys=True, default=str)
    stem = f"{scenario.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    paths = (out / (stem if number == 1 else f"{stem}-{number}") for number in itertools.count(1))
    if resume:
        there = list(itertools.takewhile(Path.is_dir, paths))
        if not there:
            raise ScenarioError(
                f"--resume: found no study of this scenario and seed in {out}. Start one without --resume"
            )
        return there[-1]
    for path in paths:
        try:
            path.mkdir(parents=True)
        except OSError as error:
            if isinstance(error, FileExistsError) and out.is_dir():
                continue  # of an earlier sweep, or of one that began in this moment
            raise StoreError(f"{path}: cannot be made ({error.strerror or error})") from error
        return path
    raise AssertionError("the numbers do not end")


def _confirm(
    worker: TrialWorker,
    scenario: Scenario,
    search: Search,
    records: Sequence[TrialRecord],
    best: TrialRecord,
    events: SweepEvents,
) -> tuple[Gain | None, dict[str, list[float]]]:
    """Run default and winner in turn, each pair on the same fresh requests.

    The best of many noisy trials looks better than it is; the stated gain rests on these runs alone.
    """
    default = next((record for record in records if record.number == 0), None)
    if default is None or default.outcome.objective is None:
        return None, {}
    if best.number == 0:
        return Gain(value=0.0, low=0.0, high=0.0), {}
    values: dict[str, list[float]] = {"default": [], "best": []}
    for repeat in range(NUM_REPEATS):
        pair = {}
        for name, record in (("default", default), ("best", best)):
            outcome = worker.evaluate(record.params, seed=scenario.seed + 1 + repeat)
            pair[name] = outcome.objective
            events.on_confirm(len(values["best"]) * 2 + len(pair), NUM_REPEATS * 2)
        if pair["default"] is not None and pair["best"] is not None:
            values["default"].append(pair["default"])
            values["best"].append(pair["best"])
    if len(values["best"]) < 2 or not all(v > 0 for v in (*values["default"], *values["best"])):
        return None, values
    import numpy as np

    interval = gain_of_pairs(np.array(values["default"]), np.array(values["best"]), maximize=search.maximize)
    return Gain(value=interval.value, low=interval.low, high=interval.high), values
