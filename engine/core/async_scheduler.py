"""Asynchronous scheduling: step k is planned before the output of step k-1 is known, two batches in flight.

A planned token that has not come back is a placeholder: it counts as known when the next step is planned. Decisions
are those of vLLM's AsyncScheduler (VLLM_SEMANTICS, section 7): everything happens one step later than in the
synchronous mode, and an end-of-sequence token costs one token that is computed and thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from engine.core.plan import Plan
from engine.core.scheduler import Scheduler, StepResult
from engine.outputs import ModelRunnerOutput, SchedulerOutput
from engine.request import Request, RequestStatus


class AsyncScheduler(Scheduler):
    """Plans with placeholders for the tokens in flight."""

    _plans_ahead = True

    def _after_schedule(self, plan: SchedulerOutput) -> None:
        unsampled = plan.unsampled
        for i, request in enumerate(plan.requests):
            if not unsampled or i not in unsampled:
                request.num_output_placeholders += 1

    def update(self, plan: SchedulerOutput, output: ModelRunnerOutput, now_s: float = 0.0) -> StepResult:
        sampled = output.sampled_token_ids
        requests: list[Request] = []
        tokens: list[int] = []
        finished: list[Request] = []
        unsampled, block_size = plan.unsampled, self.blocks.block_size
        rows: Sequence[Request] = plan.requests
        if unsampled:
            rows = [request for i, request in enumerate(rows) if i not in unsampled]
        if self._foresight is not None and (late := self._foresight.take_late()):
            token = self._foresight.steady.token
            sampled = {**sampled, **{request.request_id: token for request in late}}
            rows = sorted([*rows, *late], key=attrgetter("admission_order"))
        for request in rows:
            is_running = request.status is RequestStatus.RUNNING
            if not (is_running or request.status is RequestStatus.PREEMPTED):
                continue
            token = sampled[request.request_id]
            requests.append(request)
            tokens.append(token)
            if request.num_stale_outputs:
                request.num_stale_outputs -= 1
            else:
                request.num_output_placeholders -= 1
            if self._append(request, token):
                finished.append(request)
                if not is_running:
                    self.waiting.remove(request)
                    self.preemption.drop(request)
            if is_running:
                # A decode's block becomes findable only now that its last token is known.
                num_known = request.num_computed_tokens - request.num_output_placeholders
                if num_known % block_size == 0:
                    self.blocks.register_full_blocks(request, num_known)
        self._after_update(plan, finished, now_s)
        return StepResult(requests, tokens, finished)

    def _num_pending(self, request: Request) -> int:
        placeholders, computed = request.num_output_placeholders, request.num_computed_tokens
        if placeholders and computed + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens:
            return 0  # the token in flight is foreseen to be the last one
        return request.num_tokens + placeholders - computed

    def _next_block_event(self, request: Request) -> int:
        # Blocks are registered when tokens come back; planning only allocates, until the last token is foreseen.
        last = min(request.num_prompt_tokens + request.max_tokens, self.blocks.max_model_len) - 1
        allocation = len(request.block_ids) * self.blocks.block_size
        return 0 if request.shares_tail else min(allocation, last)

    def _preempt(self, request: Request, plan: Plan) -> bool:
        request.num_stale_outputs += request.num_output_placeholders
        request.num_output_placeholders = 0
        return super()._preempt(request, plan)
