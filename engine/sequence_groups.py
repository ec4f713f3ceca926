"""Requests that belong together: what the loop asks of parallel sampling and beam search."""

from __future__ import annotations

from typing import Protocol

from engine.outputs import ModelRunnerOutput, SchedulerOutput


class SequenceGroups(Protocol):
    """Forks, drops and chooses between the phases of a step; each call sees every step."""

    def after_plan(self, plan: SchedulerOutput) -> None:
        """A step was planned and has not run."""
        ...

    def after_execute(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> ModelRunnerOutput:
        """A step ran; returns the output with the tokens that the group chose."""
        ...

    def forget(self, request_id: str) -> list[str]:
        """A request is aborted; returns the ids of those that end with it."""
        ...
