"""Foreseen decodes change nothing: the same run as when every request is looked at in every step."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from engine.catalog import find_catalog_model
from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.executor.simulated import SIMULATED_TOKEN
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.simulation import SimulatedDevice, build_simulation

MODEL = "meta-llama/Meta-Llama-3-8B"
SPEC = find_catalog_model(MODEL)
DEVICE = SimulatedDevice.of("a100-80g-sxm")


def make_config(rng: random.Random) -> EngineConfig:
    """A small engine of any kind, mostly short of blocks."""
    block_size = rng.choice([1, 8, 16, 16, 32])
    seqs = rng.choice([4, 16, 64])
    values: dict[str, Any] = {
        "model": MODEL,
        "max_model_len": 640,
        "block_size": block_size,
        "num_blocks": 640 // block_size + rng.choice([2, 40, 400]),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": rng.choice([seqs, seqs + 10, 256, 2048]),
        "enable_prefix_caching": rng.random() < 0.7,
        "async_scheduling": rng.random() < 0.6,
        "long_prefill_token_threshold": rng.choice([0, 0, 0, 16, 100]),
        "scheduling_policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "watermark": rng.choice([0.0, 0.0, 0.05]),
        "batching": rng.choice(["continuous"] * 6 + ["static", "dynamic"]),
        "max_num_partial_prefills": rng.choice([None, None, None, 2]),
        "kv_policy": rng.choice(["paged"] * 7 + ["contiguous"]),
    }
    if rng.random() < 0.2:
        values |= {"preemption": "swap", "swap_space": "1GiB"}
    return EngineConfig.from_dict(values)


def make_requests(rng: random.Random) -> list[Request]:
    """Arrivals over some seconds, prompts that often begin alike; some go on as a simulated answer does."""
    shared = [rng.randrange(9) for _ in range(200)]
    answered = rng.random() < 0.4
    most, outputs = rng.choice([20, 150, 500]), rng.choice([2, 30, 120])
    requests, arrival_s = [], 0.0
    for i in range(rng.choice([10, 40])):
        prompt = shared[: rng.choice([0, 0, 17, 64, 200])] + [rng.randrange(9) for _ in range(rng.randint(1, most))]
        if answered and rng.random() < 0.7:
            prompt = shared[: rng.choice([0, 8, 33])] + [SIMULATED_TOKEN] * rng.choice([1, 16, 40, 90])
        arrival_s += rng.choice([0.0, 0.0, 0.02, 0.3])
        params = SamplingParams(max_tokens=rng.randint(1, outputs), ignore_eos=True)
        requests.append(
            Request(f"r{i}", prompt[:500], params, arrival_time_s=arrival_s, priority=rng.choice([0, 0, 1]))
        )
    return requests


def play(seed: int, *, foresee: bool) -> tuple[EngineCore, dict[str, list[float]]]:
    """Serve, abort one now and then; returns the core and the time of each token."""
    rng = random.Random(seed)
    config, requests = make_config(rng), make_requests(rng)
    core = build_simulation(config, DEVICE, spec=SPEC, foresee=foresee).core
    times: dict[str, list[float]] = {}
    aborts = [*sorted(rng.uniform(0.1, 4.0) for _ in range(6)), math.inf]
    while requests or core.has_unfinished():
        while requests and requests[0].arrival_time_s <= core.clock.now():
            core.add_request(requests.pop(0))
        if not core.has_unfinished():
            core.clock.sleep_until(requests[0].arrival_time_s)
            continue
        outputs = list(core.step(min([aborts[0], *(request.arrival_time_s for request in requests[:1])])))
        if core.clock.now() >= aborts[0]:
            outputs += core.settle()
            core.abort(f"r{int(aborts.pop(0) * 1000) % 40}")
        for output in outputs:
            steps = range(output.first_step, output.first_step + len(output.new_token_ids))
            times.setdefault(output.request_id, []).extend(map(core.step_stats.end_s, steps))
    core.scheduler.check_integrity()
    return core, times


@pytest.mark.parametrize("seed", range(100))
def test_foreseen_decodes_give_the_run_of_stepping_each(seed: int) -> None:
    each, each_times = play(seed, foresee=False)
    foreseen, times = play(seed, foresee=True)
    assert times == each_times
    assert list(foreseen.step_stats) == list(each.step_stats)
    assert foreseen.scheduler.fingerprint.hexdigest() == each.scheduler.fingerprint.hexdigest()
    assert foreseen.scheduler.prefix_cache_stats() == each.scheduler.prefix_cache_stats()
    assert foreseen.scheduler.blocks.pool.free_queue() == each.scheduler.blocks.pool.free_queue()
    assert foreseen.scheduler.blocks.pool.index.num_distinct() == each.scheduler.blocks.pool.index.num_distinct()


def test_steady_decodes_are_not_planned_one_by_one() -> None:
    config = EngineConfig.from_dict({"model": MODEL, "max_model_len": 640, "num_blocks": 500})
    core = build_simulation(config, DEVICE, spec=SPEC).core
    for i in range(8):
        core.add_request(Request(f"r{i}", [i] * 50, SamplingParams(max_tokens=100, ignore_eos=True)))
    num_steady = []
    while core.has_unfinished():
        core.step()
        num_steady.append(len(core.scheduler.steady or ()))
    assert num_steady == [8] * 99 + [0]  # once the prompts are computed, only the last tokens are planned again
