"""Several samples of one prompt (`n > 1`): the prompt is computed once, its blocks are shared by reference count.

The request itself is the first sample. In the step that computes the end of its prompt the others are forked from it:
they hold its blocks, compute the last prompt token again to get logits of their own, and copy the partly filled last
block when they first write to it.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.scheduler import Scheduler
from engine.outputs import ModelRunnerOutput, SchedulerOutput
from engine.request import Request


def sample_id(request_id: str, sample: int) -> str:
    """The id under which a sample's output appears: the request's own for sample 0."""
    return f"{request_id}#{sample}" if sample else request_id


class ParallelSampling:
    """Forks the further samples of requests with `n > 1`. Owns nothing but the list of those still to be forked."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._expected: dict[str, Request] = {}
        self._siblings: dict[str, list[str]] = {}

    def expect(self, request: Request) -> None:
        """A request was added."""
        if request.sampling.n > 1:
            self._expected[request.request_id] = request
            self._siblings = {
                first: others
                for first, others in self._siblings.items()
                if any(self._scheduler.find_request(each) for each in (first, *others))
            }

    def forget(self, request_id: str) -> list[str]:
        """A request is aborted; returns the ids of its further samples."""
        self._expected.pop(request_id, None)
        return self._siblings.pop(request_id, [])

    def after_plan(self, plan: SchedulerOutput) -> None:
        """Fork the samples of requests whose prompt is complete after this step."""
        if not self._expected:
            return
        for position, request in enumerate(plan.requests):
            if position not in plan.unsampled and self._expected.pop(request.request_id, None) is not None:
                self._siblings[request.request_id] = [
                    self._fork(request, sample) for sample in range(1, request.sampling.n)
                ]

    def after_execute(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> ModelRunnerOutput:
        return output

    def _fork(self, parent: Request, sample: int) -> str:
        sampling = parent.sampling
        seed = None if sampling.seed is None else sampling.seed + sample
        child = Request(
            sample_id(parent.request_id, sample),
            parent.all_token_ids[: parent.num_prompt_tokens],
            replace(sampling, n=1, seed=seed),
            arrival_time_s=parent.arrival_time_s,
            priority=parent.priority,
            eos_token_id=parent.eos_token_id,
            cache_salt=parent.cache_salt,
        )
        self._scheduler.fork(parent, child, parent.num_prompt_tokens - 1)
        return child.request_id
