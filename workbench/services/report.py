"""Reports of stored studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import suggest
from workbench.scenario import Scenario, ScenarioError
from workbench.store.errors import StoreError
from workbench.store.runs import RUN_FILE
from workbench.store.studies import STUDY_FILE


def find_study(study: Path) -> Path:
    """The folder of a study given by path or by its name under reports/. Raises `ScenarioError`."""
    for path in (study, Path("reports") / study):
        if (path / STUDY_FILE).is_file():
            return path
    if (study / RUN_FILE).is_file():
        raise ScenarioError(f"{study}: is a run, whose report is in a tool's terms. Add --dialect, for example vllm")
    raise ScenarioError(f"{study}: is not a study: {STUDY_FILE} is neither in it nor in reports/{study}")


def find_run(run: Path) -> Path:
    """The folder of a run given by path or by its name under reports/runs/. Raises `ScenarioError`."""
    for path in (run, Path("reports") / run, Path("reports/runs") / run):
        if (path / RUN_FILE).is_file():
            return path
    is_study = (run / STUDY_FILE).is_file() or (Path("reports") / run / STUDY_FILE).is_file()
    remedy = "Name one of its trials, for example trial-0000 for the default" if is_study else "Name a run's folder"
    raise ScenarioError(f"{run}: is {'a study, ' if is_study else ''}not a run: it has no {RUN_FILE}. {remedy}")


def report_in_dialect(directory: Path, dialect: str) -> dict[str, Any]:
    """A stored run's figures as another tool would print them, JSON types only.

    Raises `ScenarioError` for an unknown dialect and `StoreError` for a run that cannot be read.
    """
    from workbench.metrics.attainment import SloPolicy
    from workbench.metrics.dialects import DIALECTS
    from workbench.store.runs import load_run

    if dialect not in DIALECTS:
        raise ScenarioError(f"--dialect: {suggest(dialect, DIALECTS)}")
    run = load_run(directory)
    try:
        policy = SloPolicy.from_scenario(Scenario.model_validate(run.info.scenario))
    except ValueError as error:
        raise StoreError(f"{directory / RUN_FILE}: its scenario is of another version") from error
    figures = DIALECTS[dialect](run.record, policy)
    return {
        "dialect": dialect,
        "run": str(directory),
        "figures": {name: figure.to_json() for name, figure in figures.items()},
        "definitions": {name: figure.definition for name, figure in figures.items()},
    }


def write_report(directory: Path) -> dict[str, Path]:
    """Write `report.md` and `report.html` into the study's folder; returns both paths. Raises `StoreError`."""
    from workbench.report.study_report import write_study_report
    from workbench.services.browse import load_study_facts

    study = load_study_facts(directory)
    try:
        return write_study_report(directory, study)
    except OSError as error:
        raise StoreError(f"{directory}: the report cannot be written ({error.strerror or error})") from error
