"""Studies on disk: a directory with the result of the sweep beside the runs of its trials.

STUDY/study.json       the result (the object of `workbench sweep --json`), replaced as trials end
STUDY/trial-0007/      the run of trial 7
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.store.atomic import read_json, write_json
from workbench.store.errors import StoreError

STUDY_FILE = "study.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEntry:
    """One line of a listing."""

    directory: Path
    values: Mapping[str, Any] | None
    """Contents of `study.json`; None where it is broken."""
    problem: str | None = None


def trial_directory(study: Path, number: int) -> Path:
    """Where the run of a trial lives."""
    return study / f"trial-{number:04d}"


def save_study(directory: Path, values: Mapping[str, Any]) -> None:
    """Replace `study.json` in one step. Raises `StoreError`."""
    write_json(directory / STUDY_FILE, values)


def load_study(directory: Path) -> dict[str, Any]:
    """Contents of `study.json`. Raises `StoreError`."""
    return read_json(directory / STUDY_FILE)


def list_studies(parent: Path) -> list[StudyEntry]:
    """Directories below `parent` that hold a study, by name; broken ones with their problem."""
    try:
        directories = sorted(entry for entry in parent.iterdir() if (entry / STUDY_FILE).exists())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{parent}: cannot be listed ({error.strerror or error})") from None
    entries = []
    for directory in directories:
        try:
            entries.append(StudyEntry(directory=directory, values=load_study(directory)))
        except StoreError as error:
            entries.append(StudyEntry(directory=directory, values=None, problem=str(error)))
    return entries
