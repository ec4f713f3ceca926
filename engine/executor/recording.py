"""An executor that keeps the plans it passes on: what calibration reads the shapes of steps from."""

from __future__ import annotations

from collections.abc import Sequence

from engine.clock import VirtualClock
from engine.executor.base import Executor
from engine.executor.cost_model.machine import StepShape
from engine.executor.simulated import SimulatedExecutor
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
        seen = _Shapes()
        reader = SimulatedExecutor(seen, VirtualClock())  # shapes are by definition what the simulated device sees
        for plan in self._plans:
            reader.execute(plan)
        return seen.shapes


class _Shapes:
    """A step cost that charges nothing and remembers what it was asked."""

    def __init__(self) -> None:
        self.shapes: list[StepShape] = []

    def step_s(
        self,
        *,
        num_decodes: int,
        decode_kv_tokens: float,
        longest_kv: float,
        prefills: Sequence[tuple[int, int]],
        num_sampled: int,
    ) -> float:
        self.shapes.append(StepShape(num_decodes, decode_kv_tokens, longest_kv, tuple(prefills), num_sampled))
        return 0.0
