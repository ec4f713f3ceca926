"""The executor of a GPU that is not here: predicts how long a step takes instead of computing it.

Every scheduling decision is real; only the duration comes from the cost model. The device works through steps one
after the other: a step starts when it was handed over and the one before has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.clock import Clock
from engine.errors import OutOfMemory
from engine.executor.cost_model.step_shape import StepCost, StepShape, shape_of
from engine.outputs import ModelRunnerOutput, SchedulerOutput

SIMULATED_TOKEN = 0
"""What every simulated request answers; requests end by length."""


class SimulatedExecutor:
    """Answers with `SIMULATED_TOKEN` and the time at which the device will be done."""

    def __init__(
        self, cost: StepCost, clock: Clock, max_step_tokens: int | None = None, why: Callable[[int], str] = str
    ) -> None:
        """`max_step_tokens`: larger steps run out of memory; `why` says so of a number of tokens."""
        self._cost = cost
        self._clock = clock
        self._max_step_tokens, self._why = max_step_tokens, why
        self._busy_until_s = clock.now()
        self.num_steps = 0
        self.busy_s = 0.0
        """Seconds that the device computed."""

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if not plan.num_requests:
            return ModelRunnerOutput(sampled_token_ids={})
        if self._max_step_tokens is not None and plan.num_scheduled_tokens > self._max_step_tokens:
            raise OutOfMemory(self._why(plan.num_scheduled_tokens))
        ready_s = self._occupy(self._cost.step_s(shape_of(plan)))
        unsampled = plan.unsampled
        sampled = {
            request.request_id: SIMULATED_TOKEN
            for i, request in enumerate(plan.requests)
            if not unsampled or i not in unsampled
        }
        return ModelRunnerOutput(sampled_token_ids=sampled, ready_s=ready_s)

    def execute_steady(self, num_decodes: int, kv_tokens: int, longest_kv: int) -> float:
        """A step of steady decodes alone; returns when it is done, on the clock. KV lengths are those after it."""
        return self._occupy(self._cost.step_s(StepShape(num_decodes, kv_tokens, longest_kv, (), num_decodes)))

    def _occupy(self, duration_s: float) -> float:
        self._busy_until_s = max(self._busy_until_s, self._clock.now()) + duration_s
        self.num_steps += 1
        self.busy_s += duration_s
        return self._busy_until_s

    def close(self) -> None:
        pass
