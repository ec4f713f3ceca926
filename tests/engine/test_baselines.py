"""What the field compares against, with the shape that it reports: reserving the longest length wastes most of the
pool, and batches that run to their end leave the device idle behind their longest member."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.simulation import SimulatedDevice, build_simulation, with_gpu_defaults
from engine.stats import StepStats

POOL = {"num_blocks": 513, "max_model_len": 1024}


def make_core(clock: str, **options: Any) -> EngineCore:
    if clock == "wall":
        return build_engine(EngineConfig.from_dict({"model": "tiny", **POOL, **options}))[0]
    device = SimulatedDevice.of("a100-80g-sxm")
    values = with_gpu_defaults({**POOL, "async_scheduling": False, **options}, device.gpu)
    return build_simulation(EngineConfig.from_dict({"model": "meta-llama/Llama-2-13b-hf", **values}), device).core


def serve_mixed_lengths(core: EngineCore, count: int = 60) -> list[StepStats]:
    """Mixed short and long requests, all at once, with unshared prompts; returns every step."""
    rng = random.Random(0)
    for i in range(count):
        length, outputs = rng.choice([(40, 20), (90, 60), (200, 40), (400, 100)])
        tokens = [rng.randrange(256) for _ in range(length)]
        core.add_request(Request(f"r{i}", tokens, SamplingParams(max_tokens=outputs, ignore_eos=True)))
    while core.has_unfinished():
        core.step()
    return core.step_stats


def utilisation(steps: list[StepStats], block_size: int = 16) -> float:
    """Token positions written / positions in blocks held, over all steps."""
    held = sum(step.num_blocks_in_use for step in steps) * block_size
    return sum(step.num_kv_tokens for step in steps) / held


@pytest.mark.parametrize("prompt", [1, 16, 17, 30])
@pytest.mark.parametrize("kv_policy", ["paged", "contiguous"])
def test_parallel_samples_share_no_more_than_what_is_written(kv_policy: str, prompt: int) -> None:
    core = make_core("virtual", kv_policy=kv_policy)
    core.add_request(Request("a", list(range(prompt)), SamplingParams(max_tokens=20, ignore_eos=True, n=3)))
    while core.has_unfinished():
        core.step()
        core.scheduler.check_integrity()
    assert core.scheduler.blocks.num_kv_tokens == 0


@pytest.mark.parametrize("clock", ["wall", "virtual"])
def test_contiguous_reservation_wastes_most_of_the_pool_and_admits_several_times_fewer(clock: str) -> None:
    paged = serve_mixed_lengths(make_core(clock))
    contiguous = serve_mixed_lengths(make_core(clock, kv_policy="contiguous"))
    assert utilisation(paged) > 0.85
    assert utilisation(contiguous) < 0.5
    most_paged = max(step.num_running for step in paged)
    most_contiguous = max(step.num_running for step in contiguous)
    assert most_contiguous == 512 // (1024 // 16)
    assert most_paged >= 3 * most_contiguous


def test_static_batches_take_longest_and_continuous_the_shortest() -> None:
    """In simulated time: a batch that runs to its end leaves its seats empty as members end."""
    ends = {}
    for batching in ("continuous", "dynamic", "static"):
        steps = serve_mixed_lengths(make_core("virtual", batching=batching, max_num_seqs=8))
        ends[batching] = steps[-1].end_s
    assert ends["continuous"] < 0.8 * ends["dynamic"]
    assert ends["dynamic"] <= ends["static"]


def test_swap_computes_nothing_again_where_recompute_does() -> None:
    recomputed = {}
    for preemption in ("recompute", "swap"):
        core = make_core(
            "wall",
            num_blocks=65,
            max_model_len=600,
            enable_prefix_caching=False,
            preemption=preemption,
            **({"swap_space": "64MiB"} if preemption == "swap" else {}),
        )
        steps = serve_mixed_lengths(core, count=20)
        assert core.scheduler.num_preemptions > 0
        recomputed[preemption] = sum(step.num_recomputed_tokens for step in steps)
    assert recomputed["recompute"] > 0
    assert recomputed["swap"] == 0


def test_partial_prefill_limit_holds_back_the_second_long_prompt() -> None:
    core = make_core("virtual", max_num_partial_prefills=1, max_num_batched_tokens=64, max_num_seqs=8)
    for i in range(3):
        core.add_request(Request(f"r{i}", [i] * 300, SamplingParams(max_tokens=4, ignore_eos=True)))
    while core.has_unfinished():
        core.step()
        partial = [r for r in core.scheduler.running if r.num_computed_tokens < r.num_tokens - 1]
        assert len(partial) <= 1


def test_delay_factor_gathers_prompts_before_it_admits() -> None:
    """Requests that arrive while others decode are admitted in fewer, larger groups."""
    groups = {}
    for factor in (0.0, 4.0):
        core = make_core("virtual", scheduler_delay_factor=factor)
        for i in range(30):
            core.add_request(Request(f"r{i}", [i] * 64, SamplingParams(max_tokens=40, ignore_eos=True)))
            core.step()
        while core.has_unfinished():
            core.step()
        groups[factor] = sum(step.num_prefill_tokens > 0 for step in core.step_stats)
    assert groups[4.0] < groups[0.0]
