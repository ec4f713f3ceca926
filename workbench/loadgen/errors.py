"""Errors of running a load."""

from __future__ import annotations

from workbench.metrics.records import RunRecord


class RunFailed(Exception):
    """The target broke while it ran; `__cause__` says how, `record` holds what was observed until then."""

    def __init__(self, message: str, record: RunRecord) -> None:
        super().__init__(message)
        self.record = record


class ServerFailed(Exception):
    """A server that was to be started for a run never became ready."""
