"""Studies on disk: a directory with the result of the sweep beside the runs of its trials.

STUDY/study.json       the result (the object of `workbench sweep --json`), replaced as trials end
STUDY/trial-0007/      the run of trial 7
"""

from __future__ import annotations

import fcntl
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.store.atomic import TEMPORARY_PREFIX, read_json, write_json
from workbench.store.errors import StoreError

STUDY_FILE = "study.json"
_LOCK_FILE = ".lock"


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


def is_trial_directory(path: Path) -> bool:
    """Tell runs of trials from what else lies in a study's folder: pictures, artifacts, logs of servers."""
    return re.fullmatch(r"trial-\d+", path.name) is not None


@contextmanager
def sole_writer(study: Path) -> Iterator[None]:
    """Keep other sweeps out of the study while the block runs; a writer that is killed keeps nobody out.

    Raises `StoreError` if another sweep is at work there, or the disk refuses.
    """
    path = study / _LOCK_FILE
    try:
        stream = path.open("w")
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{study}: another sweep is at work on this study. Wait for it, or start one without --resume"
            ) from None
        except OSError as error:
            raise StoreError(f"{path}: cannot be locked ({error.strerror or error})") from error
        yield


def remove_unfinished(study: Path, finished: Collection[int]) -> None:
    """Delete what a killed sweep left: runs of trials that are not among the finished, and half-written files.

    For the study's only writer. Raises `StoreError`.
    """
    try:
        for path in study.iterdir():
            trial = re.fullmatch(r"trial-(\d+)", path.name)
            is_left = trial is not None and int(trial[1]) not in finished
            if not (is_left or path.name.startswith(TEMPORARY_PREFIX)):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise StoreError(f"{study}: what an ended sweep left cannot be removed ({error})") from error


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
