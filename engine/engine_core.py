"""The loop: schedule -> execute -> update. One scheduler, any executor, any clock.

The real engine and the simulated device run this very code; they differ in the executor and the clock handed in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from engine.beam_search import BeamSearch
from engine.clock import Clock
from engine.core.async_scheduler import AsyncScheduler
from engine.core.scheduler import Scheduler, StepResult
from engine.errors import RequestRefused
from engine.executor.base import Executor
from engine.outputs import ModelRunnerOutput, RequestOutput, SchedulerOutput
from engine.parallel_sampling import ParallelSampling
from engine.request import Request, RequestStatus
from engine.sequence_groups import SequenceGroups
from engine.stats import StepStats
from engine.step_log import StepLog


class _Step(NamedTuple):
    """A step that was handed to the executor."""

    plan: SchedulerOutput
    stats: StepStats
    output: ModelRunnerOutput


class EngineCore:
    """Owns scheduler and executor. Not thread-safe: one thread adds, aborts and steps."""

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Clock) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.step_stats = StepLog()
        """One entry per executed step, oldest first; whoever reads them may clear it."""
        self.parallel_sampling = ParallelSampling(scheduler)
        self.beam_search = BeamSearch(scheduler)
        self._groups: tuple[SequenceGroups, ...] = (self.parallel_sampling, self.beam_search)
        self._overlaps = isinstance(scheduler, AsyncScheduler)
        self._in_flight: _Step | None = None

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises `RequestRefused`, with the arithmetic, if this engine can never serve it."""
        self.check_request(request)
        self.scheduler.add_request(request)
        self.parallel_sampling.expect(request)

    def check_request(self, request: Request) -> None:
        """Raise `RequestRefused`, with the arithmetic, for a request that this engine can never serve."""
        blocks = self.scheduler.blocks
        length, limit = request.num_prompt_tokens, blocks.max_model_len
        if length == 0:
            raise RequestRefused(f"request {request.request_id!r}: the prompt is empty; it must have at least 1 token")
        if length >= limit:
            raise RequestRefused(
                f"request {request.request_id!r}: the prompt has {length} tokens, but max_model_len is {limit} and one "
                f"output token must fit. Shorten the prompt to {limit - 1} tokens or raise max_model_len"
            )
        longest = min(length + request.max_tokens, limit)
        needed, usable = blocks.num_blocks_for(longest), blocks.pool.num_usable_blocks
        if needed > usable:
            raise RequestRefused(
                f"request {request.request_id!r}: {length} prompt + {longest - length} output tokens need {needed} "
                f"blocks of {blocks.block_size}, but the pool has {usable}. Lower max_tokens, shorten the prompt or "
                "give the KV cache more memory"
            )

    def abort(self, request_id: str) -> None:
        """End a request wherever it is; unknown ids are ignored."""
        related = [other for groups in self._groups for other in groups.forget(request_id)]
        self.scheduler.finish_requests([request_id, *related], RequestStatus.FINISHED_ABORTED)

    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished()

    def step(self) -> list[RequestOutput]:
        """One step; returns the requests that got a token. Asynchronous: those of the step before.

        Raises `OutOfMemory` or whatever the executor raises; the engine is then unusable.
        """
        planned = self._plan() if self.scheduler.has_requests() else None
        outputs = self._arrears()
        if self._overlaps and self._in_flight is not None:
            # Step k was planned without the output of step k-1, but runs with its tokens.
            outputs += self._complete(self._in_flight)
            self._in_flight = None
        if planned is not None:
            step = self._issue(*planned)
            if self._overlaps:
                self._in_flight = step
            else:
                outputs += self._complete(step)
        return outputs

    def settle(self) -> list[RequestOutput]:
        """The tokens of steady decodes that have come back but were not reported."""
        self.scheduler.settle()
        return self._arrears()

    def close(self) -> None:
        self.executor.close()

    def _issue(self, plan: SchedulerOutput, stats: StepStats) -> _Step:
        output = self.executor.execute(plan)
        for groups in self._groups:
            output = groups.after_execute(plan, output)
        return _Step(plan, stats, output)

    def _complete(self, step: _Step) -> list[RequestOutput]:
        if step.output.ready_s is not None:
            self.clock.sleep_until(step.output.ready_s)
        end_s = self.clock.now()
        result = self.scheduler.update(step.plan, step.output, end_s)
        if step.plan.num_requests or step.plan.preempted_request_ids:
            self.step_stats.add(replace(step.stats, end_s=end_s))
        return _request_outputs(result, len(self.step_stats) - 1)

    def _arrears(self) -> list[RequestOutput]:
        arrears = self.scheduler.take_arrears()
        if not arrears:
            return []
        num_steps = len(self.step_stats)
        return [
            RequestOutput(
                request.request_id,
                tuple(request.all_token_ids[request.num_tokens - count :]),
                None,
                request.num_cached_tokens or 0,
                request.num_preemptions,
                num_steps - count,
            )
            for request, count in arrears
        ]

    def _plan(self) -> tuple[SchedulerOutput, StepStats]:
        start_s = self.clock.now()
        plan = self.scheduler.schedule(start_s)
        for groups in self._groups:
            groups.after_plan(plan)
        pool = self.scheduler.blocks.pool
        pool.evictions.clear()
        stats = StepStats(
            step_index=plan.step_index,
            start_s=start_s,
            end_s=start_s,
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            num_scheduled_requests=plan.num_requests,
            num_scheduled_tokens=plan.num_scheduled_tokens,
            num_prefill_tokens=plan.num_prefill_tokens,
            num_blocks_in_use=pool.num_in_use,
            num_free_blocks=pool.num_free,
            num_preempted=len(plan.preempted_request_ids),
            num_recomputed_tokens=plan.num_recomputed_tokens,
            num_kv_tokens=self.scheduler.blocks.num_kv_tokens,
            admission_stop=plan.admission_stop,
        )
        return plan, stats


def _request_outputs(result: StepResult, step: int) -> list[RequestOutput]:
    ended = {request.request_id for request in result.finished}
    return [
        RequestOutput(
            request.request_id,
            (token,),
            request.status.finish_reason if ended and request.request_id in ended else None,
            request.num_cached_tokens or 0,
            request.num_preemptions,
            step,
        )
        for request, token in zip(result.requests, result.token_ids, strict=True)
    ]
