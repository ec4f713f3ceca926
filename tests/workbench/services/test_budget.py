"""`workbench budget`: literal arithmetic, published start-up lines, and what a refusal offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.simulation import SimulatedDevice, resolve_simulated, with_gpu_defaults
from workbench.services.budget import Question, budget

GIB = 1024**3


def ask(**values: Any) -> dict[str, Any]:
    return budget(Question(**{"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "a100-80g-sxm", **values})).to_json()


def test_budget_of_qwen_with_16_gib_counts_blocks_and_tokens_exactly() -> None:
    found = ask(kv_bytes=str(16 * GIB))
    assert (found["bytes_per_token"], found["bytes_per_block"]) == (57_344, 917_504)
    assert (found["num_blocks"], found["kv_tokens"]) == (18_724, 299_584)


def test_budget_with_50_gib_rounds_concurrency_down() -> None:
    found = ask(kv_bytes="50GiB", max_model_lens=(4096, 8192, 32768, 131072))
    assert found["max_concurrency"] == {"4096": 228.57, "8192": 114.28, "32768": 28.57, "131072": 7.14}


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        ("meta-llama/Llama-2-13b-hf", 819_200),
        ("QwQ-32B", 262_144),
        ("DeepSeek-R1-Distill-Qwen-1.5B", 28_672),
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072),
        ("Qwen/Qwen3-30B-A3B", 98_304),
    ],
)
def test_bytes_per_token_follow_kv_heads_not_attention_heads(model: str, bytes_per_token: int) -> None:
    assert ask(model=model, kv_bytes="40GiB", max_model_lens=(4096,))["bytes_per_token"] == bytes_per_token


def test_bytes_per_token_of_two_gpus_are_half_each() -> None:
    assert ask(tensor_parallel_size=2, kv_bytes="16GiB")["bytes_per_token"] == 28_672


def test_bytes_per_token_with_fp8_cache_halve() -> None:
    assert ask(kv_dtype="fp8", kv_bytes="16GiB")["num_blocks"] == 37_449


def test_budget_sizes_the_cache_that_a_simulation_gets() -> None:
    found = ask(max_model_lens=(8192,), utilizations=(0.9,), settings={"max_num_seqs": 64})
    device = SimulatedDevice.of("a100-80g-sxm")
    values = {"model": "Qwen/Qwen2.5-7B-Instruct", "max_model_len": 8192, "max_num_seqs": 64}
    values = with_gpu_defaults({**values, "gpu_memory_utilization": 0.9}, device.gpu)
    simulated = resolve_simulated(EngineConfig.from_dict(values), device)
    assert found["num_blocks"] == simulated.memory.num_blocks


def test_ledger_lines_add_up_to_the_budget() -> None:
    found = ask(max_model_lens=(8192,))
    assert sum(found["ledger_bytes"].values()) == found["budget_bytes"]
    assert 0 <= found["ledger_bytes"]["free"] < found["bytes_per_block"]


def test_budget_of_a_model_too_large_refuses_and_offers_numbers() -> None:
    found = ask(model="Llama-3.1-70B")
    assert found["starts"] is False
    assert "weights 131.42 GiB" in found["reason"]
    options = [remedy["options"] for remedy in found["remedies"]]
    assert {"tp": 4} in options
    assert {"dtype": "int4", "tp": 2} in options
    assert all(remedy["concurrency"] >= 1 for remedy in found["remedies"])


def test_every_remedy_starts_when_it_is_asked_for() -> None:
    refused = ask(gpu="rtx-4090", max_model_lens=(131072,))
    assert not refused["starts"]
    kinds = set()
    for remedy in refused["remedies"]:
        options = dict(remedy["options"])
        kinds |= set(options)
        values: dict[str, Any] = {"gpu": "rtx-4090", "max_model_lens": (options.pop("max_model_len", 131072),)}
        values["tensor_parallel_size"] = options.pop("tp", 1)
        values["utilizations"] = (options.pop("gpu_memory_utilization", 0.92),)
        values["settings"] = options.pop("set", {})
        found = ask(**(values | options))
        assert found["starts"], remedy
        assert found["num_blocks"] == remedy["num_blocks"], remedy
    assert kinds == {"max_model_len", "gpu_memory_utilization", "tp", "dtype", "kv_dtype", "gpu"}


def test_longest_len_that_is_offered_is_the_longest_that_starts() -> None:
    refused = ask(gpu="rtx-4090", max_model_lens=(131072,))
    longest = next(
        r["options"]["max_model_len"] for r in refused["remedies"] if list(r["options"]) == ["max_model_len"]
    )
    assert not ask(gpu="rtx-4090", max_model_lens=(longest + 1,))["starts"]


def test_cache_larger_than_the_gpu_does_not_start() -> None:
    found = ask(gpu="l4", kv_bytes="11GiB", max_model_lens=(4096,))
    assert not found["starts"]
    assert "7603" in found["reason"]


def test_budget_of_one_l40s_with_a_32b_in_fp8_holds_one_long_answer() -> None:
    found = ask(model="Qwen/QwQ-32B-FP8", gpu="l40s", utilizations=(0.95,), max_model_lens=(32000,))
    assert found["dtype"] == "fp8"
    assert 32_000 < found["kv_tokens"] < 37_000
    assert 1.0 <= found["max_concurrency"]["32000"] < 1.2


def test_lengths_give_concurrency_at_mean_and_p95(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "\n".join(f"2023-11-16 18:00:{second:02d}.0000000,{100 * (second + 1)},28" for second in range(20))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n", encoding="utf-8")
    found = ask(kv_bytes="16GiB", lengths=trace, max_model_lens=(4096,))
    assert found["lengths"]["mean"] == 1078.0
    assert found["lengths"]["p95"] == pytest.approx(1933.0)
    assert found["concurrency"] == {"at_max_model_len": 73.14, "at_mean": 275.35, "at_p95": 154.74}


def test_length_over_the_models_positions_is_said() -> None:
    assert "over the 32768 positions" in ask(kv_bytes="50GiB", max_model_lens=(131072,))["warnings"][0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "nope"}, "neither in the catalogue"),
        ({"gpu": "a100-81g"}, "not in the catalogue"),
        ({"tensor_parallel_size": 3}, "attention heads"),
        ({"model": "microsoft/phi-4", "tensor_parallel_size": 4}, "10 KV heads or be a multiple of them"),
        ({"model": "Qwen2.5-0.5B", "tensor_parallel_size": 7}, "2 KV heads or be a multiple of them"),
        ({"dtype": "fp3"}, "did you mean 'fp8'"),
        ({"kv_bytes": "16 apples"}, "a size must be"),
        ({"utilizations": (1.5,)}, "at most 1"),
        ({"settings": {"max_num_sequences": 3}}, "max_num_seqs"),
    ],
)
def test_budget_of_what_cannot_be_names_the_rule(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(**values)


@pytest.mark.parametrize(
    ("model", "tp", "num_blocks", "max_model_len", "lines"),
    [
        # vllm-project/vllm issue 10517, pull requests 12569 and 13596: number of blocks and the line that followed
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 1952, 20_000, ("31,232", "20,000", "1.56")),
        ("meta-llama/Llama-3.1-70B-Instruct", 1, 1381, 2_048, ("22,096", "2,048", "10.79")),
        ("meta-llama/Llama-3.2-1B", 1, 127_626, 2_048, ("2,042,016", "2,048", "997.08")),
    ],
)
def test_startup_lines_are_those_that_vllm_printed(
    model: str, tp: int, num_blocks: int, max_model_len: int, lines: tuple[str, str, str]
) -> None:
    settings = {"num_blocks": num_blocks}
    found = ask(model=model, gpu="h200", tensor_parallel_size=tp, max_model_lens=(max_model_len,), settings=settings)
    tokens, length, concurrency = lines
    assert found["startup_lines"] == [
        f"GPU KV cache size: {tokens} tokens",
        f"Maximum concurrency for {length} tokens per request: {concurrency}x",
    ]


@pytest.mark.parametrize(
    ("model", "kv_dtype", "gib", "num_blocks", "max_model_len", "concurrency"),
    [
        # what vLLM printed after "Available KV cache memory" or "reserved for KV Cache", and where
        ("Qwen/Qwen3-0.6B", "auto", 69.66, 40_759, 4_096, "159.21"),  # vllm-project/vllm pull request 24577
        ("Qwen/Qwen3-14B", "auto", 6.51, 2_666, 32_768, "1.30"),  # LMCache/LMCache issue 1739
        ("Qwen/Qwen3-1.7B", "auto", 18.78, 10_991, 1_024, "171.73"),  # vllm-project/vllm issue 33263, tokens only
        ("meta-llama/Llama-3.1-8B-Instruct", "auto", 3.81, 1_952, 20_000, "1.56"),  # vllm-project/vllm issue 10517
        ("meta-llama/Llama-3.1-8B-Instruct", "auto", 2.89, 1_478, 29_000, "0.82"),  # the same
        # start-up logs of vLLM 0.7 and 0.8 in public repositories
        ("Qwen/Qwen2.5-1.5B-Instruct", "auto", 2.36, 5_519, 32_768, "2.69"),
        ("Qwen/Qwen2.5-1.5B", "auto", 15.52, 36_332, 4_096, "141.92"),
        ("Qwen/Qwen2.5-0.5B", "auto", 34.81, 190_100, 32_768, "92.82"),
        ("meta-llama/Llama-3.2-3B-Instruct", "auto", 2.38, 1_395, 10_000, "2.23"),
        ("microsoft/phi-4", "auto", 2.18, 715, 2_048, "5.59"),
    ],
)
def test_blocks_of_the_gib_that_vllm_found_are_those_it_printed(
    model: str, kv_dtype: str, gib: float, num_blocks: int, max_model_len: int, concurrency: str
) -> None:
    def blocks(size: float) -> int:
        return int(ask(model=model, gpu="h200", kv_dtype=kv_dtype, kv_bytes=f"{int(size * GIB)}")["num_blocks"])

    assert blocks(gib - 0.005) <= num_blocks <= blocks(gib + 0.005)  # two digits were printed
    sized = ask(model=model, gpu="h200", max_model_lens=(max_model_len,), settings={"num_blocks": num_blocks})
    assert sized["startup_lines"][1].endswith(f"request: {concurrency}x")


def test_model_whose_layers_are_all_windowed_needs_blocks_for_window_and_step() -> None:
    found = ask(model="mistralai/Mistral-7B-Instruct-v0.1", kv_bytes="16GiB", max_model_lens=(32768,))
    assert (found["bytes_per_token"], found["num_blocks"]) == (131_072, 8192)
    # min(4096 - 1 + 2048, 32768) = 6143 tokens = 384 blocks, and one more
    assert found["windowed"]["blocks_per_request"] == 385
    assert found["windowed"]["concurrency"] == 21.27
    assert found["max_concurrency"] == {"32768": 4.0}


def test_model_with_every_second_layer_windowed_splits_its_blocks() -> None:
    found = ask(model="google/gemma-2-9b-it", kv_bytes="16GiB", max_model_lens=(8192,))
    assert (found["bytes_per_token"], found["num_blocks"]) == (344_064, 3120)
    windowed = found["windowed"]
    assert (windowed["num_groups"], windowed["num_windowed_layers"]) == (2, 21)
    assert windowed["num_blocks"] == 6241  # 2**34 // (21 layers x 131,072 bytes): half blocks count
    assert windowed["blocks_per_request"] == 512 + 385
    assert windowed["concurrency"] == 6.95


def test_model_without_a_window_has_no_windowed_figures() -> None:
    assert ask(kv_bytes="16GiB")["windowed"] is None


@pytest.mark.parametrize(("max_model_len", "num_blocks", "starts"), [(20_000, 1952, True), (29_000, 1478, False)])
def test_blocks_left_on_a_card_are_near_those_that_vllm_found(
    max_model_len: int, num_blocks: int, starts: bool
) -> None:
    # vllm-project/vllm issue 10517: Llama-3.1-8B on an RTX 3090 at 0.90, prompts not chunked, before CUDA graphs
    settings = {"max_num_batched_tokens": max_model_len, "enforce_eager": True}
    found = ask(
        model="meta-llama/Llama-3.1-8B-Instruct",
        gpu="rtx-3090",
        utilizations=(0.9,),
        max_model_lens=(max_model_len,),
        settings=settings,
    )
    assert found["num_blocks"] == pytest.approx(num_blocks, rel=0.05)
    assert found["starts"] is starts


def test_cache_of_a_given_size_names_the_weights_where_they_are_the_cause() -> None:
    found = ask(model="Llama-3.1-70B", gpu="rtx-4090", kv_bytes="4GiB")

    assert not found["starts"]
    assert "beside weights of 141107396608 " in found["reason"]
    assert "No cache fits beside these weights" in found["reason"]
    assert any("weights" in remedy["change"] for remedy in found["remedies"])


def test_cache_of_a_given_size_beside_smaller_weights_starts_as_the_remedy_says() -> None:
    refused = ask(model="Llama-3.1-70B", gpu="h100", kv_bytes="4GiB", max_model_lens=(4096,))
    changes = [remedy["options"] for remedy in refused["remedies"]]

    assert {"dtype": "fp8"} in changes
    assert ask(model="Llama-3.1-70B", gpu="h100", kv_bytes="4GiB", max_model_lens=(4096,), dtype="fp8")["starts"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model": "Qwen3-30B-A3B-AWQ", "gpu": "rtx-4090"}, "graph capture of 128 experts"),
        ({"model": "Llama-3.1-405B", "gpu": "h100", "tensor_parallel_size": 16}, "16 GPUs are more than the 8"),
    ],
)
def test_what_the_ledger_does_not_count_is_named(values: dict[str, Any], named: str) -> None:
    assert any(named in warning for warning in ask(**values, max_model_lens=(4096,))["warnings"])


@pytest.mark.parametrize(
    "values",
    [
        {"model": "Qwen3-30B-A3B", "gpu": "h100"},
        {"model": "Qwen3-8B", "gpu": "rtx-4090"},
        {"model": "Llama-3.1-405B", "gpu": "h100", "tensor_parallel_size": 8},
        {"model": "Llama-3.1-405B", "gpu": "gb200", "tensor_parallel_size": 16},
    ],
)
def test_what_the_ledger_counts_is_not_named(values: dict[str, Any]) -> None:
    assert not any("not counted" in warning for warning in ask(**values, max_model_lens=(4096,))["warnings"])
