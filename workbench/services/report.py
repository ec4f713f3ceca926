"""Reports of stored studies."""

from __future__ import annotations

from pathlib import Path

from workbench.scenario import ScenarioError
from workbench.store.errors import StoreError
from workbench.store.studies import STUDY_FILE


def find_study(study: Path) -> Path:
    """The folder of a study given by path or by its name under reports/. Raises `ScenarioError`."""
    for path in (study, Path("reports") / study):
        if (path / STUDY_FILE).is_file():
            return path
    raise ScenarioError(f"{study}: is no study: {STUDY_FILE} is neither in it nor in reports/{study}")


def write_report(directory: Path) -> dict[str, Path]:
    """Write `report.md` and `report.html` into the study's folder; returns both paths. Raises `StoreError`."""
    from workbench.report.study_report import write_study_report
    from workbench.services.browse import load_study_facts

    study = load_study_facts(directory)
    try:
        return write_study_report(directory, study)
    except OSError as error:
        raise StoreError(f"{directory}: the report cannot be written ({error.strerror or error})") from error
