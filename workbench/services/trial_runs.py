"""Stored runs of trials, from wherever they were evaluated into the study's folder."""

from __future__ import annotations

from pathlib import Path

from workbench.search.artifacts import RunArchive, RunFiles
from workbench.store.atomic import new_directory


class _Incomplete(Exception):
    pass


def fetch_run(archive: RunArchive, files: RunFiles, directory: Path) -> bool:
    """Make `directory` from a trial's artifacts; False where they are not in this archive (another machine kept them).
    Raises `StoreError`."""
    try:
        with new_directory(directory) as temporary:
            if not archive.fetch(files, temporary):
                raise _Incomplete
    except _Incomplete:
        return False
    return True
