"""Files and importers in a few words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.scenario.arrivals import RequestFile
from workbench.workload.traces.reading import ReadTrace, read_requests


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(content: str | bytes, name: str = "trace.any") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture
def read(write: Callable[..., Path]) -> Callable[..., ReadTrace]:
    """Everything in a file with this content."""

    def read_content(content: str | bytes, **keys: Any) -> ReadTrace:
        return read_requests(RequestFile.model_validate({"path": write(content), **keys}))

    return read_content
