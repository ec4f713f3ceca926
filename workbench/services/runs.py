"""Where single runs go."""

from __future__ import annotations

import itertools
from pathlib import Path


def run_directory(parent: Path, name: str) -> Path:
    """The first of `parent/NAME-1`, `-2`, ... that is not taken."""
    return next(path for number in itertools.count(1) if not (path := parent / f"{name}-{number}").exists())
