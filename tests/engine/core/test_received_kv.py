"""Requests that begin with KV computed elsewhere."""

from __future__ import annotations

from engine.config import SchedulerConfig
from engine.core.block_manager import BlockManager
from engine.core.preemption import RecomputePreemption
from engine.core.received_kv import ReceivedKv
from engine.core.scheduler import Scheduler
from engine.outputs import ModelRunnerOutput, SchedulerOutput
from engine.request import Request, RequestStatus
from engine.sampling_params import SamplingParams
from engine.stats import AdmissionStop


def make_scheduler(num_blocks: int = 40, *, caches: bool = True) -> tuple[Scheduler, ReceivedKv]:
    """Blocks of 4 positions, 16 tokens a step."""
    blocks = BlockManager(num_blocks=num_blocks, block_size=4, max_model_len=64, enable_prefix_caching=caches)
    received = ReceivedKv(RecomputePreemption(blocks), blocks)
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16)
    return Scheduler(config, blocks, preemption=received), received


def request_of(name: str, prompt: int, *, start: int = 0, answered: int = 1) -> Request:
    request = Request(name, range(start, start + prompt), SamplingParams(max_tokens=8, ignore_eos=True))
    request.all_token_ids.extend([7] * answered)
    request.num_tokens += answered
    return request


def step(scheduler: Scheduler) -> SchedulerOutput:
    plan = scheduler.schedule()
    sampled = {each.request_id: 7 for i, each in enumerate(plan.requests) if i not in plan.unsampled}
    scheduler.update(plan, ModelRunnerOutput(sampled_token_ids=sampled))
    scheduler.check_integrity()
    return plan


def test_received_kv_takes_blocks_for_all_tokens_and_computes_the_last_one() -> None:
    scheduler, received = make_scheduler()
    request = request_of("a", 40)
    received.receive("a", 40)
    scheduler.add_request(request)

    plan = step(scheduler)

    assert (plan.num_new_tokens, plan.num_computed_tokens, plan.num_prefill_tokens) == ([1], [40], 0)
    assert len(request.block_ids) == 11
    assert request.num_cached_tokens == 0
    assert scheduler.blocks.num_kv_tokens == 41


def test_received_kv_shares_what_the_own_cache_holds_and_counts_only_that_as_a_hit() -> None:
    scheduler, received = make_scheduler()
    for name in ("a", "b"):
        received.receive(name, 40)
    first, second = request_of("a", 40), request_of("b", 40)
    scheduler.add_request(first)
    step(scheduler)
    scheduler.add_request(second)
    step(scheduler)

    assert second.block_ids[:10] == first.block_ids[:10]
    assert second.num_cached_tokens == 40
    assert scheduler.blocks.pool.num_in_use == 12


def test_received_kv_waits_for_blocks_like_any_request() -> None:
    scheduler, received = make_scheduler(num_blocks=10)
    received.receive("a", 40)
    scheduler.add_request(request_of("a", 40))

    assert step(scheduler).admission_stop is AdmissionStop.KV_BLOCKS


def test_received_kv_is_lost_by_a_preemption() -> None:
    scheduler, received = make_scheduler(num_blocks=14, caches=False)
    second = request_of("b", 20)
    for request in (request_of("a", 20), second):
        received.receive(request.request_id, 20)
        scheduler.add_request(request)

    plans = [step(scheduler) for _ in range(10)]

    # 13 blocks hold 6 of each; at 25 tokens both need a seventh. What comes back has 24 known tokens and no KV.
    assert second.num_preemptions == 1
    first_again = next(plan for plan in plans if plan.num_computed_tokens == [0])
    assert first_again.num_new_tokens == [16]


def test_received_kv_of_an_aborted_request_is_dropped() -> None:
    scheduler, received = make_scheduler()
    received.receive("a", 40)
    scheduler.add_request(request_of("a", 40))
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    again = request_of("a", 40)
    scheduler.add_request(again)

    assert step(scheduler).num_new_tokens == [16]
