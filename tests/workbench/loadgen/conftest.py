"""A core that serves requests one batch at a time, with times that a person can add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine.clock import VirtualClock
from engine.errors import RequestRefused
from engine.outputs import RequestOutput
from engine.request import Request
from engine.stats import AdmissionStop, StepStats
from engine.step_log import StepLog
from workbench.workload.account import ImportAccount
from workbench.workload.prompts import RandomPrompts, Vocabulary
from workbench.workload.records import ClosedLoopPacing, Workload, WorkloadSummary


class FakeCore:
    """Every step takes `step_s` and gives one token to each of the `max_num_seqs` oldest requests."""

    def __init__(self, clock: VirtualClock, *, step_s: float = 1.0, max_num_seqs: int = 8) -> None:
        self.clock, self.step_s, self.max_num_seqs = clock, step_s, max_num_seqs
        self.open: list[Request] = []
        self.step_stats = StepLog()
        self.added: list[tuple[str, float]] = []
        self.aborted: list[str] = []
        self.refuses: set[str] = set()
        self.breaks_at_step: int | None = None

    def add_request(self, request: Request) -> None:
        if request.request_id in self.refuses:
            raise RequestRefused("prompt too long")
        self.added.append((request.request_id, request.arrival_time_s))
        self.open.append(request)

    def has_unfinished(self) -> bool:
        return bool(self.open)

    def settle(self) -> Sequence[RequestOutput]:
        return ()

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self.open = [request for request in self.open if request.request_id != request_id]

    def step(self, until_s: float = 0.0) -> Sequence[RequestOutput]:
        if self.breaks_at_step == len(self.step_stats):
            raise MemoryError("no more")
        start_s = self.clock.now()
        running = self.open[: self.max_num_seqs]
        self.clock.advance(self.step_s)
        outputs = []
        for request in running:
            request.num_cached_tokens = 0
            request.num_tokens += 1
            is_last = request.num_output_tokens >= request.max_tokens
            outputs.append(
                RequestOutput(
                    request_id=request.request_id,
                    new_token_ids=(1,),
                    finish_reason="length" if is_last else None,
                    num_cached_tokens=0,
                    num_preemptions=0,
                    first_step=len(self.step_stats),
                )
            )
            if is_last:
                self.open.remove(request)
        self.step_stats.add(
            StepStats(
                step_index=len(self.step_stats),
                start_s=start_s,
                end_s=self.clock.now(),
                num_running=len(running),
                num_waiting=len(self.open) - len(running),
                num_scheduled_requests=len(running),
                num_scheduled_tokens=len(running),
                num_prefill_tokens=0,
                num_blocks_in_use=len(running),
                num_free_blocks=8 - len(running),
                num_preempted=0,
                num_recomputed_tokens=0,
                num_kv_tokens=len(running),
                admission_stop=AdmissionStop.NO_WAITING,
            )
        )
        return outputs


def workload_of(
    arrivals: Sequence[float],
    *,
    output_tokens: int = 2,
    closed_loop: ClosedLoopPacing | None = None,
    max_concurrency: int | None = None,
) -> Workload:
    count = len(arrivals)
    zeros = np.zeros(count, dtype=np.int64)
    return Workload(
        request_ids=tuple(f"chat-{index}" for index in range(count)),
        class_names=("chat",),
        class_index=zeros,
        arrival_s=np.array(arrivals, dtype=np.float64),
        num_prompt_tokens=zeros + 4,
        max_output_tokens=zeros + output_tokens,
        priority=zeros,
        session_index=zeros - 1,
        turn=zeros,
        prompts=RandomPrompts(
            seed=0,
            vocabulary=Vocabulary(size=32),
            class_names=("chat",),
            class_index=zeros,
            index_in_class=np.arange(count),
            num_prompt_tokens=zeros + 4,
            num_prefix_tokens=zeros,
            prefix_group=zeros - 1,
        ),
        closed_loop=closed_loop,
        max_concurrency=max_concurrency,
        declares_sharing=False,
        seed=0,
        fingerprint="",
        summary=WorkloadSummary(
            account=ImportAccount(read=count, used=count),
            num_requests=count,
            span_s=None,
            asked_rate_per_s=None,
            rate_per_s=None,
            cv=None,
            classes={},
            over_long="fail",
        ),
    )


@pytest.fixture
def make_workload() -> Callable[..., Workload]:
    return workload_of


@pytest.fixture
def make_core() -> Callable[..., tuple[FakeCore, VirtualClock]]:
    def make(*, start_s: float = 100.0, step_s: float = 1.0, max_num_seqs: int = 8) -> tuple[FakeCore, VirtualClock]:
        clock = VirtualClock(start_s)
        return FakeCore(clock, step_s=step_s, max_num_seqs=max_num_seqs), clock

    return make
