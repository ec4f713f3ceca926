"""The simulated device: exact, repeatable, and with the effects that practitioners report."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.errors import ConfigError, MemoryBudgetError, OutOfMemory
from engine.executor.cost_model.deployment import Precision
from engine.executor.cost_model.step import StepCostModel
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.simulation import (
    SimulatedDevice,
    build_simulation,
    find_simulated_spec,
    resolve_simulated,
    weight_bytes,
    with_gpu_defaults,
)

LLAMA_13B = "meta-llama/Llama-2-13b-hf"


def make_core(model: str = LLAMA_13B, gpu: str = "a100-80g-sxm", **options: Any) -> EngineCore:
    device = SimulatedDevice.of(gpu)
    values = with_gpu_defaults({"model": model, **options}, device.gpu)
    return build_simulation(EngineConfig.from_dict(values), device).core


def serve(
    core: EngineCore, lengths: list[tuple[int, int]], *, rate: float | None = None, shared: int = 0, varying: int = 0
) -> dict[str, list[float]]:
    """Token times of each request; arrivals at equal gaps of 1 / rate, or all at once."""
    rng = random.Random(0)
    prefix = [rng.randrange(9) for _ in range(shared)]
    pending = [(0.0 if rate is None else i / rate, i) for i in range(len(lengths))]
    times: dict[str, list[float]] = {}
    while pending or core.has_unfinished():
        while pending and pending[0][0] <= core.clock.now():
            arrival_s, i = pending.pop(0)
            length, outputs = lengths[i]
            header = [i % 7 + 10, i // 7 + 10] if varying else []
            own = [rng.randrange(9) for _ in range(max(length - shared - len(header), 1))]
            params = SamplingParams(max_tokens=outputs, ignore_eos=True)
            core.add_request(Request(f"r{i}", header + prefix + own, params, arrival_time_s=arrival_s))
        if not core.has_unfinished():
            core.clock.sleep_until(pending[0][0])
            continue
        for output in core.step():
            steps = range(output.first_step, output.first_step + len(output.new_token_ids))
            times.setdefault(output.request_id, []).extend(map(core.step_stats.end_s, steps))
    return times


def tokens_per_s(times: dict[str, list[float]]) -> float:
    return sum(map(len, times.values())) / max(t[-1] for t in times.values())


def test_simulation_same_input_gives_the_same_times() -> None:
    first, second = (serve(make_core(), [(300, 30)] * 40, rate=20.0) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("is_async", [False, True])
def test_simulation_of_k_times_the_costs_takes_k_times_as_long(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [(100 + 7 * i, 20 + i % 5) for i in range(40)]
    base = serve(make_core(async_scheduling=is_async), lengths)
    step_s = StepCostModel.step_s
    monkeypatch.setattr(StepCostModel, "step_s", lambda self, shape: 3.0 * step_s(self, shape))
    scaled = serve(make_core(async_scheduling=is_async), lengths)
    for name, times in base.items():
        assert scaled[name] == pytest.approx([3.0 * t for t in times], rel=1e-9)


def test_throughput_stays_on_its_plateau_once_kv_is_full() -> None:
    """KV for 68 requests at full length: asking for more at once gives no more tokens per second."""
    lengths = [(400, 112)] * 400
    rates = {}
    for concurrency in (68, 256, 1024):
        core = make_core(num_blocks=68 * 32 + 1, max_model_len=512, max_num_seqs=concurrency)
        rates[concurrency] = tokens_per_s(serve(core, lengths))
    assert rates[256] <= 1.05 * rates[68]
    assert rates[1024] <= 1.05 * rates[68]


def test_overload_grows_the_queue_linearly() -> None:
    core = make_core(num_blocks=2000, max_model_len=600)
    serve(core, [(400, 60)] * 1500, rate=60.0)
    steps = [step for step in core.step_stats if step.end_s < 20.0]
    waiting = np.array([step.num_waiting for step in steps], dtype=float)
    at = np.array([step.end_s for step in steps])
    late = at > 8.0
    slope, offset = np.polyfit(at[late], waiting[late], 1)
    assert slope > 5.0
    assert np.abs(waiting[late] - slope * at[late] - offset).max() < 0.15 * waiting.max()


def test_doubling_max_model_len_halves_full_length_concurrency() -> None:
    for length in (4096, 8192, 16384):
        resolved = [
            resolve_simulated(
                EngineConfig.from_dict({"model": "Qwen/Qwen2.5-7B-Instruct", "max_model_len": each}),
                SimulatedDevice.of("a100"),
            )
            for each in (length, 2 * length)
        ]
        first, second = (r.num_blocks / r.kv_geometry.num_blocks_for(r.max_model_len) for r in resolved)
        assert first / second == pytest.approx(2.0, rel=0.01)


def test_more_sequences_cost_tpot_and_throughput_flattens() -> None:
    tpot, rate = {}, {}
    for cap in (16, 64, 128, 256):
        core = make_core(max_num_seqs=cap, num_blocks=12_000, max_model_len=1024, gpu_memory_utilization=0.95)
        times = serve(core, [(256, 128)] * 512)
        tpot[cap] = float(np.median([(t[-1] - t[0]) / (len(t) - 1) for t in times.values()]))
        rate[cap] = tokens_per_s(times)
    assert tpot[16] < tpot[64] < tpot[128] < tpot[256]
    assert rate[64] > 1.8 * rate[16]
    assert rate[256] < 1.35 * rate[128]


def test_smaller_blocks_waste_less_of_the_pool() -> None:
    used = {}
    for block_size in (8, 16, 32, 64):
        core = make_core(block_size=block_size, num_blocks=40_000 // block_size, max_model_len=256)
        rng = random.Random(1)
        serve(core, [(rng.randrange(10, 60), rng.randrange(10, 50)) for _ in range(200)])
        held = sum(step.num_blocks_in_use for step in core.step_stats) * block_size
        used[block_size] = sum(step.num_kv_tokens for step in core.step_stats) / held
    assert used[8] > used[16] > used[32] > used[64]
    assert used[8] > 0.85


def test_shared_prompt_saves_prefill_and_ttft_and_a_varying_header_undoes_it() -> None:
    def measure(**options: Any) -> tuple[float, int]:
        core = make_core(max_model_len=2048, gpu_memory_utilization=0.95, max_num_batched_tokens=8192)
        times = serve(core, [(1700, 20)] * 60, rate=4.0, shared=1500, **options)
        first = {name: t[0] - int(name[1:]) / 4.0 for name, t in times.items()}
        return float(np.median(list(first.values()))), sum(step.num_prefill_tokens for step in core.step_stats)

    ttft, prefilled = measure()
    ttft_header, prefilled_header = measure(varying=2)
    assert ttft < 0.6 * ttft_header
    assert prefilled < 0.6 * prefilled_header


def test_configuration_that_would_not_start_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(MemoryBudgetError, match="No room for a KV cache"):
        make_core("meta-llama/Llama-2-70b-hf")
    with pytest.raises(ConfigError, match="max_model_len: one request of 131072 tokens"):
        make_core("Llama-3.1-8B", "l4", max_num_seqs=8, max_num_batched_tokens=512)
    config = EngineConfig.from_dict({"model": LLAMA_13B})
    with pytest.raises(ConfigError, match="tensor_parallel_size: must divide"):
        resolve_simulated(config, SimulatedDevice.of("a100", tensor_parallel_size=3))
    with pytest.raises(ConfigError, match="neither in the catalogue nor a directory"):
        make_core("no-such-model")


def test_high_utilisation_dies_of_long_prompts_under_a_large_budget_where_a_lower_one_lives() -> None:
    def serve_long(utilization: float, budget: int) -> dict[str, list[float]]:
        core = make_core(
            "meta-llama/Meta-Llama-3-8B",
            max_model_len=8192,
            gpu_memory_utilization=utilization,
            max_num_batched_tokens=budget,
        )
        return serve(core, [(8000, 4)] * 6)

    with pytest.raises(OutOfMemory, match=r"step of 16384 tokens.*Lower gpu_memory_utilization or max_num_batched"):
        serve_long(0.95, 16384)
    assert len(serve_long(0.88, 16384)) == 6
    assert len(serve_long(0.95, 8192)) == 6


def test_graphs_out_of_the_budget_leave_their_bytes_to_the_cache() -> None:
    """Llama-2-13B: 40 layers x 12 MiB of graphs; a block of 16 tokens takes 12.5 MiB."""
    device = SimulatedDevice.of("a100-80g-sxm")
    config = EngineConfig.from_dict(with_gpu_defaults({"model": LLAMA_13B}, device.gpu))
    inside = resolve_simulated(config, device)
    beside = resolve_simulated(config, dataclasses.replace(device, budgets_graphs=False))
    assert beside.num_blocks - inside.num_blocks in (38, 39)


def test_weights_that_a_checkpoint_leaves_alone_are_counted_in_full() -> None:
    """Llama-3.1-405B in fp8: attention projections (126 x 2 x 16384 x 128 x 136) and embeddings stay in bfloat16."""
    spec = find_simulated_spec("Llama-3.1-405B-FP8")
    attention = 126 * 2 * 16384 * 128 * 136
    norms = 126 * 2 * 16384
    mlp = 126 * 3 * 16384 * 53248
    expected = 2 * attention + mlp + norms + 2 * 2 * 128256 * 16384
    assert weight_bytes(spec, Precision(weights="fp8"), 8) == expected // 8
