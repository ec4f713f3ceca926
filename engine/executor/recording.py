"""An executor that keeps the plans it passes on: what calibration reads the shapes of steps from."""

from __future__ import annotations

from engine.executor.base import Executor
from engine.executor.cost_model.step_shape import StepShape, shape_of
from engine.outputs import ModelRunnerOutput, SchedulerOutput


class RecordingExecutor:
    """Passes plans on to another executor; `close` leaves that one open, its owner goes on with it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._plans: list[SchedulerOutput] = []

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self._plans.append(plan)  # taken apart later: nothing may slow the step that is being timed
        return self._executor.execute(plan)

    def close(self) -> None:
        pass

    def shapes(self) -> list[StepShape]:
        """Of the executed steps that scheduled something, oldest first."""
        return [shape_of(plan) for plan in self._plans if plan.num_requests]
