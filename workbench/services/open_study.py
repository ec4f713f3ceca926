"""The folder and the storage of a sweep's study, new or one to go on with."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from workbench.scenario import Scenario, ScenarioError, scenario_to_dict
from workbench.search.artifacts import RunArchive
from workbench.search.storage import BaseStorage, close_storage, open_journal, open_url, redacted, study_names
from workbench.search.study import SweepStudy
from workbench.services.shared_study import make_study, share_study
from workbench.store.atomic import write_text
from workbench.store.errors import StoreError
from workbench.store.studies import STUDY_FILE, load_study, remove_unfinished, sole_writer

JOURNAL = "journal.log"
ARTIFACTS = "artifacts"
"""Folder in the study's."""
STORAGE_NOTE = "storage.txt"
"""In the folder of a study that is kept elsewhere: where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlace:
    """Where a study's results go and where it is kept."""

    out: Path
    """Folder of all studies."""
    storage: str | None = None
    """URL; None: a journal file in the study's own folder."""
    artifacts: Path | None = None
    """Folder for the stored runs; None: in the study's own."""
    resume: bool = False
    """Go on with the newest study of the same definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStudy:
    """A study that this process leads."""

    study: SweepStudy
    directory: Path
    archive: RunArchive


@contextmanager
def open_study(scenario: Scenario, seed: int, place: StudyPlace) -> Iterator[OpenStudy]:
    """The study, without what a killed sweep left half done; no other sweep works on it while the block runs.

    Raises `ScenarioError` if there is none to go on with, `StorageError` and `StoreError` for what cannot be opened.
    """
    with ExitStack() as stack:
        storage = None if place.storage is None else open_url(place.storage)
        if storage is not None:
            stack.callback(close_storage, storage)
        yield from _open(scenario, seed, place, storage)


def _open(scenario: Scenario, seed: int, place: StudyPlace, storage: BaseStorage | None) -> Iterator[OpenStudy]:
    taken = () if storage is None else study_names(storage)
    directory = study_directory(scenario, seed, place.out, resume=place.resume, kept=None if storage is None else taken)
    with sole_writer(directory):
        folder = place.artifacts or directory / ARTIFACTS
        _make(folder)
        if storage is None:
            study = _open_beside(directory, scenario, seed, folder)
        else:
            write_text(directory / STORAGE_NOTE, f"{redacted(str(place.storage))}\n")
            study = make_study(directory.name, scenario, seed, storage, folder, is_new=None)
            share_study(study, scenario)
        try:
            finished = {record.number for record in study.records()}
            if lost := _trials_shown(directory) - finished:
                where = directory / JOURNAL if place.storage is None else redacted(place.storage)
                raise StoreError(
                    f"{where}: lacks {len(lost)} trials that {STUDY_FILE} has, so it is not whole. Start a study "
                    "without --resume"
                )
            remove_unfinished(directory, finished)
            yield OpenStudy(study=study, directory=directory, archive=RunArchive(folder))
        finally:
            study.close()


def study_directory(
    scenario: Scenario, seed: int, out: Path, *, resume: bool, kept: tuple[str, ...] | None = None
) -> Path:
    """`out/NAME-HASH`, the hash over everything that defines the study; a new one gets the next free number.

    With `resume` the newest study of this very definition, so that trials of different definitions never mix. `kept`
    are the names of the studies in a storage apart from the folder.
    """
    text = json.dumps([scenario_to_dict(scenario), seed], sort_keys=True, default=str)
    stem = f"{scenario.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if resume and kept is not None:
        return _resumed_in_storage(stem, out, kept)
    paths = (out / (stem if number == 1 else f"{stem}-{number}") for number in itertools.count(1))
    if resume:
        there = list(itertools.takewhile(Path.is_dir, paths))
        if not there:
            raise ScenarioError(
                f"--resume: found no study of this scenario and seed in {out}. Start one without --resume"
            )
        return there[-1]
    for path in paths:
        if path.name in (kept or ()):
            continue  # begun from another folder or machine
        try:
            path.mkdir(parents=True)
        except OSError as error:
            if isinstance(error, FileExistsError) and out.is_dir():
                continue  # of an earlier sweep, or of one that began in this moment
            raise StoreError(f"{path}: cannot be made ({error.strerror or error})") from error
        return path
    raise AssertionError("the numbers do not end")


def _resumed_in_storage(stem: str, out: Path, kept: tuple[str, ...]) -> Path:
    numbers = [int(match[1] or 1) for name in kept if (match := re.fullmatch(rf"{re.escape(stem)}(?:-(\d+))?", name))]
    if not numbers:
        raise ScenarioError("--resume: found no study of this scenario and seed in the storage. Start one without it")
    newest = max(numbers)
    return _make(out / (stem if newest == 1 else f"{stem}-{newest}"))


def _make(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: cannot be made ({error.strerror or error})") from error
    return path


def _open_beside(directory: Path, scenario: Scenario, seed: int, folder: Path) -> SweepStudy:
    journal = directory / JOURNAL
    with suppress(OSError):
        url = (directory / STORAGE_NOTE).read_text(encoding="utf-8").strip()
        raise ScenarioError(f"--resume: {directory.name} is kept in {url}. Give that with --storage")
    is_new = not journal.exists()
    try:
        return make_study(directory.name, scenario, seed, open_journal(journal), folder, is_new=None)
    except OSError as error:
        raise StoreError(f"{journal}: cannot be written ({error.strerror or error})") from error
    except Exception as error:  # a broken journal may break Optuna in any way
        if is_new:
            raise
        reason = f"{type(error).__name__}: {error}"[:120]
        raise StoreError(f"{journal}: cannot be read ({reason}). Start a study without --resume") from error


def _trials_shown(directory: Path) -> set[int]:
    """Numbers of the trials in `study.json`, which is written after the storage."""
    try:
        return {trial["number"] for trial in load_study(directory)["trials"]}
    except (StoreError, KeyError, TypeError):
        return set()
