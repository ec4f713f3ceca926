"""Invariants of scheduler and block manager under random use."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import SchedulerConfig
from engine.core.admission import admission_policies
from engine.core.async_scheduler import AsyncScheduler
from engine.core.block_manager import BlockManager
from engine.core.preemption import RecomputePreemption, SwapPreemption
from engine.core.scheduler import Scheduler
from engine.outputs import ModelRunnerOutput, SchedulerOutput
from engine.request import Request, RequestStatus
from engine.sampling_params import SamplingParams

configurations = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 2, 3, 4, 8]),
        "num_blocks": st.integers(18, 60),
        "max_num_seqs": st.integers(1, 8),
        "budget": st.integers(8, 40),
        "caching": st.booleans(),
        "kv_policy": st.sampled_from(["paged", "paged", "contiguous"]),
        "preemption": st.sampled_from(["recompute", "swap"]),
        "asynchronous": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "batching": st.sampled_from(["continuous", "continuous", "dynamic", "static"]),
        "threshold": st.sampled_from([0, 0, 3]),
        "watermark": st.sampled_from([0.0, 0.1]),
        "reserve": st.booleans(),
        "partial": st.sampled_from([None, 1, 2]),
    }
)


def make_scheduler(choice: dict[str, Any]) -> Scheduler:
    size = choice["block_size"]
    longest = min((choice["num_blocks"] - 1) * size, 24)
    is_async = choice["asynchronous"] and choice["preemption"] == "recompute"
    config = SchedulerConfig(
        max_num_seqs=choice["max_num_seqs"],
        max_num_batched_tokens=choice["budget"],
        scheduling_policy=choice["policy"],
        batching=choice["batching"],
        long_prefill_token_threshold=choice["threshold"],
        watermark=choice["watermark"],
        scheduler_reserve_full_isl=choice["reserve"],
        max_num_partial_prefills=choice["partial"],
        async_scheduling=is_async,
    )
    blocks = BlockManager(
        num_blocks=choice["num_blocks"],
        block_size=size,
        max_model_len=longest,
        enable_prefix_caching=choice["caching"],
        kv_policy=choice["kv_policy"],
        watermark=choice["watermark"],
    )
    preemption = (
        SwapPreemption(blocks, num_host_blocks=20) if choice["preemption"] == "swap" else RecomputePreemption(blocks)
    )
    kind = AsyncScheduler if is_async else Scheduler
    return kind(config, blocks, preemption=preemption, admission=admission_policies(config))


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, aborts, forks and steps in any order; every invariant is proved after every action."""

    @initialize(choice=configurations, seed=st.integers(0, 2**16))
    def start(self, choice: dict[str, Any], seed: int) -> None:
        self.scheduler = make_scheduler(choice)
        self.random = random.Random(seed)
        self.in_flight: list[SchedulerOutput] = []
        self.depth = 2 if isinstance(self.scheduler, AsyncScheduler) else 1
        self.num_added = 0
        self.total = self.scheduler.blocks.pool.num_usable_blocks

    @rule(length=st.integers(1, 20), outputs=st.integers(1, 12), shared=st.booleans(), priority=st.integers(0, 2))
    def add(self, length: int, outputs: int, shared: bool, priority: int) -> None:
        length = min(length, self.scheduler.blocks.max_model_len - 1)
        if length < 1:
            return
        tokens = [7] * length if shared else [self.random.randrange(3, 40) for _ in range(length)]
        self.scheduler.add_request(
            Request(
                f"r{self.num_added}",
                tokens,
                SamplingParams(max_tokens=outputs),
                priority=priority,
                arrival_time_s=float(self.num_added),
                eos_token_id=2,
            )
        )
        self.num_added += 1

    @precondition(lambda self: self.scheduler.has_unfinished())
    @rule(position=st.integers(0, 100))
    def abort(self, position: int) -> None:
        alive = [*self.scheduler.running, *self.scheduler.waiting]
        victim = alive[position % len(alive)]
        self.scheduler.finish_requests([victim.request_id], RequestStatus.FINISHED_ABORTED)
        assert not victim.block_ids or victim in self.scheduler._held

    @precondition(lambda self: self.depth == 1 and self.scheduler.running and not self.scheduler.admission)
    @rule(position=st.integers(0, 100))
    def fork(self, position: int) -> None:
        parent = self.scheduler.running[position % len(self.scheduler.running)]
        if parent.num_computed_tokens < 2 or self.scheduler.blocks.reserves_max_len:
            return
        child = Request(
            f"r{self.num_added}",
            parent.all_token_ids[: parent.num_computed_tokens],
            SamplingParams(max_tokens=3),
            arrival_time_s=float(self.num_added),
        )
        self.num_added += 1
        self.scheduler.fork(parent, child, parent.num_computed_tokens - 1)

    @rule()
    def step(self) -> None:
        if self.scheduler.has_requests():
            plan = self.scheduler.schedule()
            assert plan.num_scheduled_tokens == sum(plan.num_new_tokens)
            assert plan.num_scheduled_tokens <= self.scheduler.config.max_num_batched_tokens
            assert len(self.scheduler.running) <= self.scheduler.config.max_num_seqs
            assert 0 <= plan.num_recomputed_tokens <= plan.num_prefill_tokens <= plan.num_scheduled_tokens
            for row in plan.scheduled:
                covered = row.num_computed_tokens + row.num_scheduled_tokens
                assert len(row.block_ids) * self.scheduler.blocks.block_size >= covered
            self.in_flight.append(plan)
            if len(self.in_flight) < self.depth and plan.requests:
                return
        if self.in_flight:
            plan = self.in_flight.pop(0)
            sampled = {r.request_id: self.random.choice([2, 5, 7, 9, 11, 13]) for r in plan.requests}
            self.scheduler.update(plan, ModelRunnerOutput(sampled_token_ids=sampled))

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()
        pool = self.scheduler.blocks.pool
        assert pool.num_free + pool.num_in_use == self.total

    def teardown(self) -> None:
        """Every admissible request ends, and the pool is then as at the start."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not self.scheduler.has_unfinished():
                break
            self.step()
            self.scheduler.check_integrity()
        assert not self.scheduler.has_unfinished(), "a request never ended"
        self.scheduler.schedule()  # gives back what a padded batch held when its last member was aborted
        assert self.scheduler.blocks.pool.num_free == self.total
        assert self.scheduler.blocks.num_kv_tokens == 0


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


@given(choice=configurations, seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_scheduler_same_input_gives_the_same_fingerprint(choice: dict[str, Any], seed: int) -> None:
    digests = []
    for _ in range(2):
        rng = random.Random(seed)
        scheduler = make_scheduler(choice | {"asynchronous": False})
        for i in range(6):
            tokens = [rng.randrange(3, 40) for _ in range(rng.randrange(1, scheduler.blocks.max_model_len))]
            scheduler.add_request(Request(f"r{i}", tokens, SamplingParams(max_tokens=3)))
        while scheduler.has_unfinished():
            plan = scheduler.schedule()
            scheduler.update(plan, ModelRunnerOutput(sampled_token_ids={r.request_id: 5 for r in plan.requests}))
        digests.append(scheduler.fingerprint.hexdigest())
    assert digests[0] == digests[1]
