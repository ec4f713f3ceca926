"""What a published row's simulation leaves out is said, and so are figures that its chip cannot reach."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from engine.simulation import SimulatedDevice, find_simulated_spec
from workbench.services.evaluate_e2e import evaluate_rows, notes_on
from workbench.services.evaluate_notes import floors_s
from workbench.services.evaluate_row import engine_of, workload_of

ROW = {
    "id": "r", "engine": "vllm", "engine_version": "0.11.0", "model": "Qwen3-8B", "weights_dtype": "bf16",
    "gpu": "H100", "tp": "1", "input_len": "1000", "output_len": "50", "num_prompts": "40", "request_rate": "20",
}  # fmt: skip


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ("vllm serve M --max-num-seqs 64 --trust-remote-code", []),
        ("--speculative-config '{\"a\": \"ngram\"}' --stream-interval=4", ["speculative-config", "stream-interval"]),
        ("max_model_len=32768 enforce_eager=False swap_space=4", ["swap-space"]),
        ("--enable_expert_parallel --compilation_config.pass_config.fuse true", ["enable-expert-parallel",
                                                                                "compilation-config"]),
        ("-tp 2 --no-enable-prefix-caching --swap-space 4 # --comment", ["swap-space"]),
        ("# random 2K input", []),
        ("--unbalanced 'quote", ["unbalanced"]),
    ],
)  # fmt: skip
def test_options_that_are_not_modelled_are_named(args: str, names: list[str]) -> None:
    expected = [f"not modelled: {', '.join(f'--{name}' for name in names)}"] if names else []

    assert notes_on({**ROW, "engine_args": args}) == expected


def test_option_that_a_column_states_is_not_named_twice() -> None:
    assert notes_on({**ROW, "kv_dtype": "fp8", "engine_args": "--kv-cache-dtype fp8"}) == []
    assert notes_on({**ROW, "engine_args": "--kv-cache-dtype fp8"}) == ["not modelled: --kv-cache-dtype"]


def test_parallelism_of_a_column_is_named() -> None:
    assert notes_on({**ROW, "ep": "4", "dp": "2"}) == [
        "not modelled: expert parallelism (ep 4)", "not modelled: data parallelism (dp 2)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        ("--no-enable-prefix-caching", "enable_prefix_caching", False),
        ("--enable-prefix-caching", "enable_prefix_caching", False),  # no prompt comes twice
        ("--no-enable-chunked-prefill", "enable_chunked_prefill", False),
        ("--enable-chunked-prefill=False", "enable_chunked_prefill", False),
        ("--async-scheduling", "async_scheduling", True),
        ("--long-prefill-token-threshold 256", "long_prefill_token_threshold", 256),
    ],
)
def test_options_that_are_modelled_reach_the_engine(args: str, name: str, value: object) -> None:
    assert engine_of({**ROW, "engine_args": args}, SimulatedDevice.of("h100"), 40_960)[name] == value


def test_concurrency_beside_a_rate_caps_the_requests_in_flight() -> None:
    assert workload_of({**ROW, "max_concurrency": "4"}).max_concurrency == 4
    assert workload_of(ROW).max_concurrency is None

    capped, free = evaluate_rows([{**ROW, "max_concurrency": "4"}, ROW])

    assert capped["predicted"]["duration_s"] > 1.5 * free["predicted"]["duration_s"]
    assert capped["predicted"]["tpot_mean_ms"] < free["predicted"]["tpot_mean_ms"]


def test_floors_are_the_data_sheets_by_hand() -> None:
    spec, device = find_simulated_spec("meta-llama/Llama-3.1-8B"), SimulatedDevice.of("h100")
    layers = 8_030_261_248 - 2 * 128_256 * 4096 - 4096

    ttft_s, tpot_s = floors_s(spec, device, 1000)

    assert ttft_s == pytest.approx(2 * layers * 1000 / 989e12)
    assert tpot_s == pytest.approx((layers + 128_256 * 4096) * 2 / 3350e9)


def test_floor_of_experts_counts_those_of_one_token() -> None:
    spec, device = find_simulated_spec("Qwen/Qwen3-30B-A3B"), SimulatedDevice.of("h100")

    assert floors_s(spec, device, 1)[1] == pytest.approx(3.0e9 * 2 / 3350e9, rel=0.15)


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        ({"ttft_mean_ms": "9"}, ["ttft_mean_ms 9 is under the floor of 14 ms"]),
        ({"ttft_mean_ms": "40", "tpot_mean_ms": "9"}, []),
        ({"tpot_p50_ms": "2"}, ["tpot_p50_ms 2 is under the floor of 4.52 ms"]),
        ({"total_tok_s": "90000"}, ["total_tok_s 90000 is over the 71,191 tokens/s"]),
        ({"total_tok_s": "60000"}, []),
    ],
)
def test_figure_under_the_floor_is_named(figures: dict[str, str], named: list[str]) -> None:
    notes = notes_on({**ROW, **figures})

    assert [note.startswith(text) for note, text in zip(notes, named, strict=True)] == [True] * len(named)
    assert all(note.endswith(("a prefix hit?", "speculative decoding?")) for note in notes)


def test_published_rows_of_the_shared_table_are_above_their_floors(shared_data: Path) -> None:
    with (shared_data / "e2e.csv").open(newline="") as stream:
        notes = [note for row in csv.DictReader(stream) for note in notes_on(row) if "floor" in note]

    assert notes == []
