"""Read-only views of the store for reports and pages: broken things come back with their problem, not as errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.report.facts import InteractionFacts, RunFacts, StudyFacts
from workbench.report.run_facts import run_facts
from workbench.report.study_facts import study_facts, trial_facts
from workbench.store.errors import StoreError
from workbench.store.runs import RUN_FILE, RunInfo, list_runs, load_run
from workbench.store.studies import STUDY_FILE, is_trial_directory, list_studies, load_study

__all__ = [
    "REPORT_FILE",
    "Entry",
    "StoreError",
    "is_finished",
    "load_run_facts",
    "load_study_facts",
    "num_trials_asked",
    "run_modified_s",
    "runs",
    "studies",
    "study_modified_s",
]

RUNS_FOLDER = "runs"
"""Folder of single runs below the store."""
REPORT_FILE = "report.html"
_COPY_SLACK_S = 60.0
"""Copying a study may give its files new times in any order; they differ by less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One study or run of a listing."""

    name: str
    """For people; unique in its listing."""
    directory: Path
    modified_s: float
    """POSIX time at which its main file was last replaced; 0 where that is unknown."""
    problem: str | None = None
    """Why it cannot be read, if it cannot."""


def studies(store: Path) -> list[Entry]:
    """Studies below `store`, newest first."""
    try:
        found = list_studies(store)
    except StoreError as error:
        return [Entry(name=str(store), directory=store, modified_s=0.0, problem=str(error))]
    entries = []
    for entry in found:
        problem = entry.problem
        if entry.values is not None:
            problem = _problem_of(entry.directory.name, entry.values)
        entries.append(
            Entry(
                name=entry.directory.name,
                directory=entry.directory,
                modified_s=modified_s(entry.directory / STUDY_FILE),
                problem=problem,
            )
        )
    return sorted(entries, key=lambda entry: -entry.modified_s)


def runs(store: Path) -> list[Entry]:
    """Single runs, newest first, then the runs of each study's trials."""
    alone = _runs_in(store / RUNS_FOLDER, prefix="")
    ordered = sorted(alone, key=lambda entry: -entry.modified_s)
    for study in studies(store):
        found = _runs_in(study.directory, prefix=f"{study.name} / ")
        ordered += [entry for entry in found if is_trial_directory(entry.directory)]
    return ordered


def is_finished(directory: Path) -> bool:
    """The sweep ended: it has a gain or a reason to stop, or its report was written after its last trial."""
    try:
        values = load_study(directory)
    except StoreError:
        return True  # nothing to wait for
    if values.get("gain") is not None or values.get("stopped") is not None:
        return True
    written = modified_s(directory / REPORT_FILE)
    return written > 0 and written >= modified_s(directory / STUDY_FILE) - _COPY_SLACK_S


def num_trials_asked(study: StudyFacts) -> int | None:
    """Trials that the scenario asks for (the command line may have asked for another number)."""
    asked = (study.scenario_resolved.get("search") or {}).get("trials")
    return asked if isinstance(asked, int) and asked >= len(study.trials) else None


def load_study_facts(directory: Path, *, with_runs: bool = True) -> StudyFacts:
    """A study with the runs of its default and its best (or nearest miss). Raises `StoreError`."""
    values = load_study(directory)
    try:
        bare = study_facts(directory.name, values)
        loaded, problems = _close_runs(directory, bare) if with_runs else ({}, [])
        importances, interactions = _explained(values)
        return study_facts(
            directory.name,
            values,
            runs=loaded,
            identical=_identical(values),
            importances=importances,
            interactions=interactions,
            problems=problems,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{directory / STUDY_FILE}: is not as expected ({error!r}). Another version's?") from error


def load_run_facts(directory: Path) -> RunFacts:
    """One stored run. Raises `StoreError`."""
    stored = load_run(directory)
    info = {name: getattr(stored.info, name) for name in RunInfo.__dataclass_fields__}
    try:
        return run_facts(directory.name, info, stored.record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StoreError(f"{directory}: its records are not as expected ({error!r}). Another version's?") from error


def modified_s(path: Path) -> float:
    """POSIX time of the last change; 0 where there is no such file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def run_modified_s(directory: Path) -> float:
    return modified_s(directory / RUN_FILE)


def study_modified_s(directory: Path) -> float:
    return modified_s(directory / STUDY_FILE)


def _runs_in(parent: Path, prefix: str) -> list[Entry]:
    try:
        found = list_runs(parent)
    except StoreError as error:
        return [Entry(name=f"{prefix}{parent.name}", directory=parent, modified_s=0.0, problem=str(error))]
    return [
        Entry(
            name=prefix + entry.directory.name,
            directory=entry.directory,
            modified_s=run_modified_s(entry.directory),
            problem=entry.problem,
        )
        for entry in found
    ]


def _problem_of(name: str, values: Mapping[str, Any]) -> str | None:
    try:
        study_facts(name, values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"{STUDY_FILE} is not as expected ({error!r}). Was it written by another version?"
    return None


def _close_runs(directory: Path, study: StudyFacts) -> tuple[dict[int, RunFacts], list[str]]:
    """Runs of default and rival, and why one is missing."""
    loaded, problems = {}, []
    for trial in (study.default, study.rival):
        if trial is None or trial.run is None or trial.number in loaded:
            continue
        try:
            loaded[trial.number] = load_run_facts(directory / trial.run)
        except StoreError as error:
            problems.append(f"The records of trial {trial.number} cannot be shown: {error}")
    return loaded, problems


def _identical(values: Mapping[str, Any]) -> list[str]:
    """Sentences about trials that made the same scheduling decisions."""
    from workbench.search.noop import find_identical_schedules
    from workbench.search.outcome import TrialOutcome, TrialState
    from workbench.search.study import TrialRecord

    trials = [trial_facts(trial) for trial in values.get("trials") or ()]
    records = [
        TrialRecord(
            number=trial.number,
            params=trial.params,
            outcome=TrialOutcome(state=TrialState.COMPLETE, fingerprint=trial.fingerprint),
        )
        for trial in trials
        if trial.fingerprint is not None
    ]
    return [group.sentence for group in find_identical_schedules(records)]


def _explained(values: Mapping[str, Any]) -> tuple[Mapping[str, float] | None, Sequence[InteractionFacts] | None]:
    """(importance of each parameter, interaction of each pair); None where too little is known."""
    from workbench.scenario.search import Dimension
    from workbench.search.importance import parameter_importances
    from workbench.search.interaction import parameter_interactions

    try:
        space = {name: Dimension.model_validate(one) for name, one in (values.get("space") or {}).items()}
    except ValueError:  # a dimension of another version
        return None, None
    trials = [trial_facts(trial) for trial in values.get("trials") or ()]
    complete = [(t.params, t.objective) for t in trials if t.is_scored and t.objective is not None]
    known = [(params, value) for params, value in complete if params.keys() >= space.keys()]
    pairs = parameter_interactions(known, space)
    return (
        parameter_importances(known, space),
        None
        if pairs is None
        else tuple(
            InteractionFacts(names=each.names, share=each.share, p_value=each.p_value, is_shown=each.is_shown)
            for each in pairs
        ),
    )
