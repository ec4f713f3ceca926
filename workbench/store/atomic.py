"""Writing so that a reader, or a crash, never sees half of it."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workbench.store.errors import StoreError

TEMPORARY_PREFIX = ".writing-"


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """A temporary directory beside `final` that becomes `final` when the block ends well, and goes away otherwise.

    Raises `StoreError` if `final` exists or the disk refuses (full, read-only).
    """
    temporary = final.parent / f"{TEMPORARY_PREFIX}{final.name}-{os.getpid()}"
    try:
        if final.exists():
            raise StoreError(f"{final}: exists already. Results are never overwritten: choose another name")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        _sync(temporary)
        temporary.rename(final)
        _sync(final.parent)
    except OSError as error:
        raise StoreError(f"{final}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replace the file in one step. Raises `StoreError`."""
    temporary = path.parent / f"{TEMPORARY_PREFIX}{path.name}-{os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace the JSON file in one step; refuses NaN and infinity (`ValueError`)."""
    write_text(path, json_text(values))


def json_text(values: Mapping[str, Any]) -> str:
    """The text of a JSON file. Raises `ValueError` for NaN and infinity."""
    return json.dumps(values, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, numbers finite. Raises `StoreError` where it is missing, cut off or something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"), parse_float=_finite, parse_constant=_finite)
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: cannot be read ({_first_line(error)}). Was it cut off?") from None
    if not isinstance(values, dict):
        raise StoreError(f"{path}: is not a JSON object")
    return values


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
