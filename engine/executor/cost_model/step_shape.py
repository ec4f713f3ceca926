"""What a step's time may depend on: the one record between a plan and whatever predicts how long it takes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.outputs import SchedulerOutput


class StepShape(NamedTuple):
    """The batch of one step."""

    num_decodes: int
    decode_kv_tokens: float
    """Sum of the decodes' KV lengths after the step."""
    longest_kv: float
    """The greatest of them."""
    prefills: tuple[tuple[int, int], ...]
    """(new, cached) tokens of each chunk."""
    num_sampled: int
    """Rows that yield a token."""

    @property
    def num_tokens(self) -> int:
        return self.num_decodes + sum(new for new, _ in self.prefills)


class StepCost(Protocol):
    """Predicts steps."""

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step."""
        ...


def shape_of(plan: SchedulerOutput) -> StepShape:
    """Of a plan that schedules something. One new token is a decode, whatever it is of."""
    num_decodes, kv_tokens, longest = plan.num_steady, plan.steady_kv_tokens, plan.steady_longest_kv
    prefills: list[tuple[int, int]] = []
    for num_new, computed in zip(plan.num_new_tokens, plan.num_computed_tokens, strict=True):
        if num_new == 1:
            num_decodes += 1
            kv_tokens += computed + 1
            longest = max(longest, computed + 1)
        else:
            prefills.append((num_new, computed))
    num_sampled = plan.num_requests - len(plan.unsampled)
    return StepShape(num_decodes, float(kv_tokens), float(longest), tuple(prefills), num_sampled)
