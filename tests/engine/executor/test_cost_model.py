from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from engine.catalog import GpuSpec, find_catalog_model, find_gpu, list_gpus
from engine.executor.cost_model.collectives import (
    CUSTOM_GRAPH,
    HOST_LATENCY_S,
    HOST_SHARE,
    all_reduce_s,
    host_all_reduce_s,
    step_all_reduce_s,
    with_borders,
)
from engine.executor.cost_model.deployment import Overheads, Precision
from engine.executor.cost_model.end_to_end import Factors, factors_for
from engine.executor.cost_model.operators import load_profile, profile_from_dict, profile_to_dict
from engine.executor.cost_model.profiles import profile_for
from engine.executor.cost_model.rank_operators import RankOperators
from engine.executor.cost_model.step import StepCostModel
from engine.executor.cost_model.step_shape import StepShape


def make_model(gpu: str = "a100-80g-sxm", model: str = "Llama-3.1-8B", **options: object) -> StepCostModel:
    spec, found = find_catalog_model(model), find_gpu(gpu)
    assert spec is not None
    return StepCostModel(RankOperators(spec=spec, gpu=found, profile=profile_for(found), **options))  # type: ignore[arg-type]


def decode_s(cost: StepCostModel, batch: int, length: int) -> float:
    return cost.step_s(StepShape(batch, batch * length, length, (), batch))


def prefill_s(cost: StepCostModel, new: int, cached: int = 0) -> float:
    return cost.step_s(StepShape(0, 0.0, 0.0, ((new, cached),), 1))


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda gpu: gpu.id)
def test_step_on_every_gpu_is_finite_and_grows_with_the_batch_and_the_context(gpu: object) -> None:
    cost = make_model(gpu.id)  # type: ignore[attr-defined]
    batches = [decode_s(cost, batch, 500) for batch in (1, 8, 64, 256)]
    lengths = [decode_s(cost, 32, length) for length in (16, 512, 4096, 16384)]
    prompts = [prefill_s(cost, new) for new in (64, 512, 2048, 8192)]
    for series in (batches, lengths, prompts):
        assert np.isfinite(series).all()
        assert min(series) > 0
    assert batches == sorted(batches)
    assert lengths == sorted(lengths)
    assert prompts[1:] == sorted(prompts[1:])
    assert prefill_s(cost, 512, cached=8192) > prefill_s(cost, 512)


def test_single_stream_decode_is_near_the_weight_traffic() -> None:
    """8.03 billion bfloat16 weights over 2,039 GB/s take 7.9 ms; kernels, attention and overheads come on top."""
    assert 0.0085 < decode_s(make_model(overheads=Overheads(step_us=0.0, layer_us=0.0)), 1, 100) < 0.0115


def test_one_long_sequence_costs_more_than_its_share_of_the_mean() -> None:
    cost = make_model()
    even = cost.step_s(StepShape(4, 40_000, 10_000, (), 4))
    skewed = cost.step_s(StepShape(4, 40_000, 39_000, (), 4))
    assert skewed > even


def test_precision_and_parallelism_shorten_a_step() -> None:
    plain = decode_s(make_model("h100-80g-sxm"), 16, 1000)
    assert decode_s(make_model("h100-80g-sxm", precision=Precision(weights="fp8")), 16, 1000) < plain
    assert decode_s(make_model("h100-80g-sxm", precision=Precision(weights="int4")), 16, 1000) < plain
    assert decode_s(make_model("h100-80g-sxm", tensor_parallel_size=2), 16, 1000) < plain
    eager = decode_s(make_model("h100-80g-sxm", enforce_eager=True), 16, 1000)
    assert eager > plain


def test_mixture_of_experts_reads_few_experts_for_one_token_and_all_for_many() -> None:
    cost = make_model("h100-80g-sxm", "Qwen/Qwen3-30B-A3B")
    dense = make_model("h100-80g-sxm", "Qwen/Qwen3-32B")
    assert decode_s(cost, 1, 100) < 0.4 * decode_s(dense, 1, 100)
    assert decode_s(cost, 64, 100) > 1.8 * decode_s(cost, 1, 100)


def test_profile_survives_its_file() -> None:
    profile = load_profile("h100-80g-sxm")
    again = profile_from_dict(profile_to_dict(profile))
    columns = {"m": np.array([1.0, 333.0]), "n": np.array([4096.0, 4096.0]), "k": np.array([4096.0, 4096.0])}
    from engine.executor.cost_model.operators import chip_of

    chip = chip_of(find_gpu("h100"), "bfloat16")
    first, second = (p.model("gemm", "bfloat16").predict_s(columns, chip) for p in (profile, again))
    assert second == pytest.approx(first, rel=1e-6)
    assert profile.model("gemm", "bfloat16").error is not None


def test_profile_of_a_gpu_that_was_not_measured_says_whose_it_is_and_claims_no_error() -> None:
    profile = profile_for(find_gpu("a40"))
    assert profile.provenance["transferred_from"] == "a100-80g-sxm"
    assert all(model.error is None and model.correction is None for model in profile.models.values())


def test_all_reduce_interpolates_in_size_and_extends_its_ends() -> None:
    tables = {"NCCL/2": [(1024.0, 10e-6), (2048.0, 15e-6), (4096.0, 25e-6)]}
    assert all_reduce_s(tables, "NCCL", 2, 3072) == pytest.approx(20e-6)
    assert all_reduce_s(tables, "NCCL", 2, 16) == pytest.approx(10e-6)
    assert all_reduce_s(tables, "NCCL", 2, 8192) == pytest.approx(45e-6)
    assert all_reduce_s(tables, "NCCL", 4, 2048) is None


def test_all_reduce_jumps_at_a_border_that_each_side_reaches_along_its_own_line() -> None:
    """Two A100s: the custom kernel below 8 MiB (here 4 us + 5 us/MiB), NCCL from there, 20 % slower through vLLM."""
    mib = 2.0**20
    custom = [(size * mib, (4 + 5 * size) * 1e-6) for size in (1.0, 4.0)] + [(32 * mib, 240e-6)]
    nccl = [(size * mib, (40 + 5 * size) * 1e-6) for size in (1.0, 32.0)]
    tables = with_borders({f"{CUSTOM_GRAPH}/2": custom, "NCCL/2": nccl}, "Ampere")
    assert all_reduce_s(tables, CUSTOM_GRAPH, 2, 2 * mib) == pytest.approx(14e-6)
    assert all_reduce_s(tables, CUSTOM_GRAPH, 2, 8 * mib - 2) == pytest.approx(44e-6, rel=1e-5)
    assert all_reduce_s(tables, CUSTOM_GRAPH, 2, 8 * mib) == pytest.approx(1.2 * 80e-6)
    assert all_reduce_s(tables, CUSTOM_GRAPH, 2, 16 * mib) == pytest.approx(1.2 * 120e-6)
    assert tables["NCCL/2"] == nccl
    assert with_borders(tables, "Ampere") == tables


def test_all_reduce_of_one_measured_size_in_a_regime_is_taken_as_constant_there() -> None:
    kib = 1024.0
    table = [(128 * kib, 9e-6), (512 * kib, 26e-6), (2048 * kib, 21e-6), (4096 * kib, 27e-6)]
    tables = with_borders({f"{CUSTOM_GRAPH}/8": table}, "Blackwell")
    assert all_reduce_s(tables, CUSTOM_GRAPH, 8, 256 * kib) == pytest.approx(26e-6)
    assert all_reduce_s(tables, CUSTOM_GRAPH, 8, 1024 * kib) == pytest.approx(18e-6)


def test_step_all_reduce_takes_the_custom_kernel_below_8_mib_and_whatever_was_measured() -> None:
    tables = {f"{CUSTOM_GRAPH}/2": [(1.0, 1e-6), (2.0**30, 1e-6)], "NCCL/2": [(1.0, 9e-6), (2.0**30, 9e-6)]}
    assert step_all_reduce_s(tables, 2, 2.0**23 - 1, graph=True) == pytest.approx(1e-6)
    assert step_all_reduce_s(tables, 2, 2.0**23, graph=True) == pytest.approx(9e-6)
    assert step_all_reduce_s(tables, 2, 1024.0, graph=False) == pytest.approx(9e-6)
    assert step_all_reduce_s(tables, 4, 1024.0, graph=True) is None


def test_overheads_scale_with_what_they_name() -> None:
    base = make_model(overheads=Overheads())
    slower = make_model(overheads=dataclasses.replace(Overheads(), step_us=1300.0))
    assert decode_s(slower, 4, 100) - decode_s(base, 4, 100) == pytest.approx(1e-3)


def test_factors_go_from_few_to_many_tokens() -> None:
    factors = Factors(few_tokens=0.5, many_tokens=2.0)
    few, middle, many = factors.linear(np.array([1.0, 256.0, 65536.0])).tolist()
    assert few == pytest.approx(0.5, rel=1e-4)
    assert middle == pytest.approx(1.0)
    assert many == pytest.approx(2.0, rel=1e-4)


def test_factors_scale_the_part_that_they_name() -> None:
    plain, slower = make_model(), make_model(factors=Factors(mixed_attention=2.0))
    alone = StepShape(8, 8000.0, 1000.0, (), 8)
    beside = StepShape(8, 8000.0, 1000.0, ((512, 0),), 9)
    assert slower.step_s(alone) == plain.step_s(alone)
    attention_s = plain.rank.spec.num_layers * plain._decode_attention_s(8, 8000.0, 1000.0)
    assert slower.step_s(beside) - plain.step_s(beside) == pytest.approx(attention_s)


def test_slower_tensor_units_show_only_where_they_are_waited_for() -> None:
    plain, slower = make_model(), make_model(factors=Factors(compute=2.0))
    assert decode_s(slower, 1, 100) == pytest.approx(decode_s(plain, 1, 100), rel=0.05)
    prompt = StepShape(0, 0.0, 0.0, ((8192, 0),), 1)
    assert slower.step_s(prompt) / plain.step_s(prompt) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda gpu: gpu.id)
@pytest.mark.parametrize("weights", ["bfloat16", "fp8", "int4"])
def test_experts_take_at_least_the_reading_of_their_weights(gpu: GpuSpec, weights: str) -> None:
    """Qwen3-30B-A3B: 128 experts of three matrices, 2,048 x 768, of which 4,096 tokens leave none out."""
    for num_ranks in (1, 8):
        cost = make_model(gpu.id, "Qwen3-30B-A3B", tensor_parallel_size=num_ranks, precision=Precision(weights=weights))
        weight_bytes = 128 * 3 * 2048 * 768 / num_ranks * cost.rank.precision.weight_bytes
        seconds = [cost._layer_s(tokens) for tokens in (1, 64, 4096)]
        assert seconds == sorted(seconds)
        assert seconds[2] > weight_bytes / gpu.bandwidth


def test_less_overlap_shows_where_reading_and_computing_take_alike() -> None:
    plain, slower = make_model(), make_model(factors=Factors(overlap=0.5))
    excess = [slower._layer_s(tokens) / plain._layer_s(tokens) - 1.0 for tokens in (1, 256, 8192)]
    assert excess[1] > 0.1
    assert max(excess[0], excess[2]) < excess[1] / 2.0


def test_power_limit_of_a_family_holds_for_fp8_weights_too() -> None:
    pcie = find_gpu("h100-80g-pcie")
    known, fp8 = (factors_for(pcie, weights, "bfloat16") for weights in ("bfloat16", "fp8"))
    assert (fp8.compute, fp8.overlap, fp8.few_tokens) == (known.compute, known.overlap, 1.0)


def test_factors_of_an_unknown_family_are_one() -> None:
    assert factors_for(find_gpu("rtx-3090"), "bfloat16", "bfloat16") == Factors()


def test_all_reduce_through_host_memory_is_latency_and_traffic() -> None:
    """Two GPUs move the message once each way; four 1.5 times, after two latencies."""
    link = 32e9
    assert host_all_reduce_s(2, 0.0, link) == pytest.approx(HOST_LATENCY_S)
    moved = host_all_reduce_s(4, 1e6, link) - 2 * HOST_LATENCY_S
    assert moved == pytest.approx(1.5e6 / (HOST_SHARE * link))
