"""Asynchronous scheduling: step k is planned before the output of step k-1 is known, two batches in flight.

A planned token that has not come back is a placeholder: it counts as known when the next step is planned. Decisions
are those of vLLM's AsyncScheduler (VLLM_SEMANTICS, section 7): everything happens one step later than in the
synchronous mode, and an end-of-sequence token costs one token that is computed and thrown away.
"""

from __future__ import annotations

from engine.core.scheduler import Scheduler, StepResult, _Plan
from engine.outputs import ModelRunnerOutput, SchedulerOutput
from engine.request import Request, RequestStatus


class AsyncScheduler(Scheduler):
    """Plans with placeholders for the tokens in flight."""

    def _num_pending(self, request: Request) -> int:
        placeholders, computed = request.num_output_placeholders, request.num_computed_tokens
        if placeholders and computed + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens:
            return 0  # the token in flight is foreseen to be the last one
        return request.num_tokens + placeholders - computed

    def _after_planned(self, request: Request, *, is_last: bool) -> None:
        if is_last:
            request.num_output_placeholders += 1

    def _preempt(self, request: Request, plan: _Plan) -> bool:
        request.num_stale_outputs += request.num_output_placeholders
        request.num_output_placeholders = 0
        return super()._preempt(request, plan)

    def _unplan(self, request: Request, plan: _Plan) -> None:
        if plan.requests.index(request) not in plan.unsampled:
            request.num_stale_outputs -= 1  # the token of this step will not come
        super()._unplan(request, plan)

    def update(self, plan: SchedulerOutput, output: ModelRunnerOutput, now_s: float = 0.0) -> StepResult:
        sampled = output.sampled_token_ids
        requests: list[Request] = []
        tokens: list[int] = []
        finished: list[Request] = []
        for i, request in enumerate(plan.requests):
            if i in plan.unsampled or request.status.is_finished:
                continue
            token = sampled[request.request_id]
            requests.append(request)
            tokens.append(token)
            was_running = request.status is RequestStatus.RUNNING
            if request.num_stale_outputs:
                request.num_stale_outputs -= 1
            else:
                request.num_output_placeholders -= 1
            if self._append(request, token):
                finished.append(request)
                if not was_running:
                    self.waiting.remove(request)
                    self.preemption.drop(request)
            if was_running:
                # A decode's block becomes findable only now that its last token is known.
                self.blocks.register_full_blocks(request, request.num_computed_tokens - request.num_output_placeholders)
        self._after_update(plan, finished, now_s)
        return StepResult(requests, tokens, finished)
