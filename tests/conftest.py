"""Shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

# Before torch is imported: test processes share the cores, and spinning OpenMP threads would slow all of them.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public sample data next to the checkout; tests that need it are skipped, with the reason, where it is absent."""
    path = Path(os.environ.get("WORKBENCH_SHARED", REPOSITORY.parent / "shared")) / "data"
    if not path.is_dir():
        pytest.skip(f"sample data not found at {path} (set WORKBENCH_SHARED to the folder that holds data/)")
    return path


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, None]:
    """On CI nothing may be skipped: what cannot run there is a fault of the set-up."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = (
            f"skipped on CI: {report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr}"
        )
