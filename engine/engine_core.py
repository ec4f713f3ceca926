"""The loop: schedule -> execute -> update. One scheduler, any executor, any clock.

The real engine and the simulated device run this very code; they differ in the executor and the clock handed in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from engine.beam_search import BeamSearch
from engine.clock import Clock
from engine.core.async_scheduler import AsyncScheduler
from engine.core.scheduler import Scheduler, StepResult
from engine.errors import RequestRefused
from engine.executor.base import Executor
from engine.executor.simulated import SimulatedExecutor
from engine.outputs import ModelRunnerOutput, RequestOutput, SchedulerOutput
from engine.parallel_sampling import ParallelSampling
from engine.request import Request, RequestStatus
from engine.sequence_groups import SequenceGroups
from engine.step_log import StepLog, stop_code


class _Step(NamedTuple):
    """A step that was handed to the executor."""

    plan: SchedulerOutput
    start_s: float
    facts: Sequence[int]
    """As `StepLog.append` takes them."""
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

    def step(self, until_s: float = -math.inf) -> list[RequestOutput]:
        """One step; returns the requests that got a token. Asynchronous: those of the step before.

        Where decodes are foreseen and nothing is to be decided, as many steps as begin before `until_s` on the clock:
        the next moment at which the caller has something to say; left out, one step is all.

        Raises `OutOfMemory` or whatever the executor raises; the engine is then unusable.
        """
        coasted = self._coast(until_s)
        if coasted is not None:
            return coasted
        planned = self._plan() if self.scheduler.has_requests() else None
        outputs = self._in_arrears(self.scheduler.take_arrears())
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
        return self._in_arrears(self.scheduler.take_news())

    def close(self) -> None:
        self.executor.close()

    def _issue(self, plan: SchedulerOutput, start_s: float, facts: Sequence[int]) -> _Step:
        output = self.executor.execute(plan)
        for groups in self._groups:
            output = groups.after_execute(plan, output)
        return _Step(plan, start_s, facts, output)

    def _complete(self, step: _Step) -> list[RequestOutput]:
        if step.output.ready_s is not None:
            self.clock.sleep_until(step.output.ready_s)
        end_s = self.clock.now()
        result = self.scheduler.update(step.plan, step.output, end_s)
        if step.plan.num_requests or step.plan.preempted_request_ids:
            self.step_stats.append(step.start_s, end_s, step.facts)
        return _request_outputs(result, len(self.step_stats) - 1)

    def _coast(self, until_s: float) -> list[RequestOutput] | None:
        """Steps in which every request is a steady decode, without a plan for each; None where there is none to take.

        Each goes through the same phases as in `step`, in the same order, so that every time and block is the same.
        Returns the news of the step that was in flight before.
        """
        scheduler, executor, before = self.scheduler, self.executor, self._in_flight
        steady = scheduler.steady
        if steady is None or not isinstance(executor, SimulatedExecutor) or (self._overlaps and before is None):
            return None
        stop = scheduler.find_coast()
        if stop is None:
            return None
        pool, num_seqs, num_waiting, code = scheduler.blocks.pool, len(steady), len(scheduler.waiting), stop_code(stop)
        end, first, now_s = steady.next_end(), scheduler.num_planned, self.clock.now()
        outputs: list[RequestOutput] = []
        pending: tuple[float, Sequence[int], float] | None = None  # start, facts and end of the step in flight
        while now_s < until_s and (step := scheduler.num_planned) < end and scheduler.coast():
            free, kv_tokens = pool.num_free, scheduler.blocks.num_kv_tokens
            in_use = pool.num_usable_blocks - free
            facts = (step, num_seqs, num_waiting, num_seqs, num_seqs, 0, in_use, free, 0, 0, kv_tokens, code)
            start_s = now_s
            if pending is not None:
                now_s = self._log_at(pending[2], pending[0], pending[1])
            elif before is not None:
                outputs = self._in_arrears(scheduler.take_arrears()) + self._complete(before)
                now_s = self.clock.now()
            ready_s = executor.execute_steady(num_seqs, steady.kv_tokens(step), steady.longest_kv(step))
            if self._overlaps:
                pending = (start_s, facts, ready_s)
            else:
                now_s = self._log_at(ready_s, start_s, facts)
        if scheduler.num_planned == first:
            return None
        if pending is not None:
            plan = SchedulerOutput(
                step_index=scheduler.num_planned - 1,
                requests=(),
                num_new_tokens=(),
                num_computed_tokens=(),
                unsampled=frozenset(),
                num_scheduled_tokens=num_seqs,
                num_steady=num_seqs,
            )
            output = ModelRunnerOutput(sampled_token_ids={}, ready_s=pending[2])
            self._in_flight = _Step(plan, pending[0], pending[1], output)
        pool.evictions.clear()
        return outputs

    def _log_at(self, ready_s: float, start_s: float, facts: Sequence[int]) -> float:
        """Wait for a coasted step's output and take it; returns when that was."""
        self.clock.sleep_until(ready_s)
        end_s = self.clock.now()
        self.step_stats.append(start_s, end_s, facts)
        self.scheduler.take_coasted()
        return end_s

    def _in_arrears(self, arrears: Sequence[tuple[Request, int]]) -> list[RequestOutput]:
        """Each got so many tokens, one from each of the last steps of the log."""
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

    def _plan(self) -> tuple[SchedulerOutput, float, Sequence[int]]:
        start_s = self.clock.now()
        plan = self.scheduler.schedule(start_s)
        for groups in self._groups:
            groups.after_plan(plan)
        self.scheduler.blocks.pool.evictions.clear()
        return plan, start_s, self._facts(plan)

    def _facts(self, plan: SchedulerOutput) -> Sequence[int]:
        """The planned step's row of the log."""
        scheduler = self.scheduler
        pool = scheduler.blocks.pool
        return (
            plan.step_index,
            len(scheduler.running),
            len(scheduler.waiting),
            plan.num_requests,
            plan.num_scheduled_tokens,
            plan.num_prefill_tokens,
            pool.num_in_use,
            pool.num_free,
            len(plan.preempted_request_ids),
            plan.num_recomputed_tokens,
            scheduler.blocks.num_kv_tokens,
            stop_code(plan.admission_stop),
        )


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
