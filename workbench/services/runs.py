"""Where single runs go."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from workbench.services.evaluate import RunResult, store_run
from workbench.store.errors import StoreError


def check_writable(parent: Path) -> None:
    """Make the folder if need be. Raises `StoreError` where no run can be stored: better known before it than after."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{parent}: cannot be made ({error.strerror or error})") from error
    if not os.access(parent, os.W_OK | os.X_OK):
        raise StoreError(f"{parent}: cannot be written to. Choose another folder with --out")


def store_next(parent: Path, name: str, result: RunResult) -> Path:
    """Store a run as the first of `parent/NAME-1`, `-2`, ... that is not taken. Raises `StoreError`."""
    for number in itertools.count(1):
        directory = parent / f"{name}-{number}"
        if directory.exists():
            continue
        try:
            return store_run(directory, result)
        except StoreError:
            if not directory.exists():
                raise  # else another run took the name in this moment
    raise AssertionError("the numbers do not end")
