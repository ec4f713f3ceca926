"""Predictions against measurements: the tables' formats, and what cannot be predicted."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from workbench.scenario import ScenarioError
from workbench.services.evaluate_cells import check_stated
from workbench.services.evaluate_e2e import evaluate_e2e, predict_row
from workbench.services.evaluate_iog import was_served_before
from workbench.services.evaluate_lengths import published_lengths
from workbench.services.evaluate_ops import evaluate_ops
from workbench.services.evaluate_row import device_of, target_of, workload_of
from workbench.services.evaluate_trace import evaluate_trace, read_trace


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


GEMM = {"gpu": "H100-SXM-80GB", "op": "gemm", "dtype": "bfloat16", "m": 128, "n": 4096, "k": 4096, "time_us": 20.0}
RUN = {
    "id": "a", "engine": "vllm", "engine_version": "0.11.0", "model": "Qwen3-8B", "weights_dtype": "bf16",
    "kv_dtype": "bf16", "gpu": "H100-SXM-80GB", "tp": 1, "pp": 1, "dataset": "random", "input_len": 200,
    "output_len": 20, "len_dist": "fixed", "num_prompts": 12, "request_rate": "inf", "max_concurrency": 4,
    "engine_args": "", "bench_note": "", "output_tok_s": 500.0, "tpot_mean_ms": 7.4,
}  # fmt: skip

OLD = {
    **{name: str(value) for name, value in RUN.items()},
    "engine_version": "0.6.3", "gpu": "A100-80GB", "num_prompts": "1", "request_rate": "single", "max_concurrency": "1",
    "engine_args": "gpu_memory_utilization=0.9 max_model_len=32768 enforce_eager=False",
}  # fmt: skip


def test_ops_error_is_predicted_over_measured_and_unsupported_rows_are_null(tmp_path: Path) -> None:
    result = evaluate_ops(write(tmp_path / "t.csv", [GEMM, {**GEMM, "dtype": "nvfp4"}, {**GEMM, "gpu": "TPU"}]))
    first, *others = result["rows"]
    assert first["error"] == pytest.approx(first["predicted_us"] / 20.0 - 1.0)
    assert all(row["predicted_us"] is None and row["error"] is None for row in others)
    assert result["median"] == pytest.approx(abs(first["error"]))
    assert first["m"] == "128"


@pytest.mark.parametrize("name", ["m", "n", "k"])
@pytest.mark.parametrize("odd", ["", "x", "0", "-1", "nan", "inf"])
def test_ops_odd_row_is_left_out_alone(tmp_path: Path, name: str, odd: str) -> None:
    rows = evaluate_ops(write(tmp_path / "t.csv", [GEMM, {**GEMM, name: odd}]))["rows"]
    assert rows[1]["predicted_us"] is None
    alone = evaluate_ops(write(tmp_path / "t.csv", [GEMM]))["rows"][0]["predicted_us"]
    assert rows[0]["predicted_us"] == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "odd"),
    [("num_gpus", each) for each in ("", "x", "1e999", "nan", "2.5", "0", "-2", "3", "16")]
    + [("message_bytes", each) for each in ("", "x", "0", "-1", "nan", "inf")]
    + [("kernel", "")],
)
def test_ops_odd_all_reduce_is_left_out(tmp_path: Path, name: str, odd: str) -> None:
    row = {
        "gpu": "H100-SXM-80GB",
        "op": "all_reduce",
        "kernel": "NCCL",
        "num_gpus": 2,
        "message_bytes": 1e6,
        "time_us": 9,
    }
    rows = evaluate_ops(write(tmp_path / "t.csv", [row, {**row, name: odd}]))["rows"]
    assert [each["predicted_us"] is None for each in rows] == [False, True]


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "\x00\x01"])
def test_ops_of_something_else_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(ScenarioError, match=r"bad\.csv"):
        evaluate_ops(path)


def test_e2e_predicts_what_the_row_has_and_says_why_it_cannot(tmp_path: Path) -> None:
    rows = [
        RUN,
        {**RUN, "id": "b", "engine": "tensorrt-llm"},
        {**RUN, "id": "c", "model": "no-such-model"},
        {**RUN, "id": "d", "input_len": ""},
        {**RUN, "id": "e", "model": "Llama-3.1-405B"},
    ]
    result = {row["id"]: row for row in evaluate_e2e(write(tmp_path / "e.csv", rows))["rows"]}
    assert result["a"]["reason"] is None
    assert set(result["a"]["errors"]) == {"output_tok_s", "tpot_mean_ms"}
    assert abs(result["a"]["errors"]["tpot_mean_ms"]) < 0.15
    assert "not vLLM" in result["b"]["reason"]
    assert "no-such-model" in result["c"]["reason"]
    assert "input_len" in result["d"]["reason"]
    assert "No room" in result["e"]["reason"]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": ""}, "model is not stated"),
        ({"gpu": ""}, "gpu: '' is not in the catalogue"),
        ({"tp": "-1"}, "tp: must be a number from 1"),
        ({"tp": "two"}, "tp: must be a number from 1"),
        ({"input_len": "nan"}, "input_len is not published"),
        ({"input_len": "0"}, "input_len: must be a number from 1"),
        ({"output_len": "-5"}, "output_len: must be a number from 1"),
        ({"output_len": "1e30"}, "output_len: must be a number from 1"),
        ({"num_prompts": "-3"}, "num_prompts: must be a number from 1"),
        ({"num_prompts": "1e9"}, "num_prompts: must be at most 200000"),
        ({"max_concurrency": "1e12"}, "max_concurrency: must be a number from 1"),
        ({"request_rate": "fast"}, "request_rate: must be a rate"),
        ({"request_rate": "-1"}, "request_rate: must be a rate"),
        ({"engine_args": "--max-num-seqs 1.5"}, "engine_args: max-num-seqs must be of type int"),
    ],
)
def test_e2e_row_that_no_run_can_have_had_is_not_built(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    (result,) = evaluate_e2e(write(tmp_path / "e.csv", [RUN | cells]))["rows"]
    assert result["reason"].startswith(reason)
    assert result["predicted"] == result["errors"] == {}


def test_e2e_row_of_too_few_or_too_many_cells_is_still_a_row(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("id,model,gpu,weights_dtype,engine\na\nb,Qwen3-8B,h100-80g-sxm\nc,Qwen3-8B,h100-80g-sxm,,,1,2\n")
    reasons = [row["reason"] for row in evaluate_e2e(path)["rows"]]
    assert reasons == ["model is not stated", *["input_len is not published"] * 2]


@pytest.mark.parametrize("unstated", ["", "nan", "inf", "None"])
def test_e2e_cell_that_says_nothing_is_unstated(unstated: str) -> None:
    row = {**OLD, "max_concurrency": unstated, "request_rate": unstated, "num_prompts": "3"}
    check_stated(row)
    workload = workload_of(row)
    assert workload.arrival_s.tolist() == [0.0] * 3
    assert workload.max_concurrency is None


def test_e2e_table_without_rows_says_so(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("id,model,gpu\n")
    with pytest.raises(ScenarioError, match="has no rows below its header"):
        evaluate_e2e(path)


@pytest.mark.parametrize("kind", ["fixed", "uniform[0.8L,L]", "sharegpt lengths"])
def test_lengths_have_the_published_mean(kind: str) -> None:
    row = {"input_len": "210.5", "output_len": "199", "len_dist": kind}
    for side, mean in (("input", 210.5), ("output", 199.0)):
        lengths = published_lengths(row, side, 200)
        assert lengths is not None
        assert lengths.mean() == pytest.approx(mean * (0.9 if "uniform" in kind else 1.0), abs=0.6)
        assert lengths.min() >= 1


def test_lengths_of_sharegpt_answers_are_often_short_and_never_endless() -> None:
    lengths = published_lengths({"output_len": "200", "dataset": "sharegpt"}, "output", 200)
    assert lengths is not None
    assert (lengths < 12).sum() >= 5
    assert 600 < lengths.max() < 800


def test_longest_answer_of_a_series_comes_late() -> None:
    lengths = published_lengths({**IOG, "output_len": "200"}, "output", 200)
    assert lengths is not None
    assert int(lengths.argmax()) == 166
    assert lengths.mean() == pytest.approx(200.0, abs=0.5)


def test_row_over_the_models_window_keeps_its_lengths() -> None:
    """A published run did start: Qwen2.5-14B states 32,768 positions."""
    row = {**OLD, "model": "Qwen2.5-14B-Instruct", "input_len": "63488", "output_len": "4"}
    workload = workload_of(row)
    assert workload.num_prompt_tokens.tolist() == [63488]
    assert target_of(row, device_of(row), workload).resolved.max_model_len == 63492


def test_row_whose_graphs_came_on_top_of_the_budget_fits_as_published() -> None:
    """gpustack ran 32,000 tokens on one H100 at utilisation 0.9; since vLLM 0.21 graphs come out of that."""
    row = {**OLD, "engine_version": "0.11.0", "model": "Qwen3-32B", "gpu": "H100-SXM-80GB", "input_len": "32000",
           "output_len": "77", "engine_args": ""}  # fmt: skip
    resolved = target_of(row, device_of(row), workload_of(row)).resolved
    assert resolved.config.cache.gpu_memory_utilization == 0.9
    assert resolved.num_blocks > 2005
    assert device_of({**row, "engine_version": "0.22.0"}).budgets_graphs


def test_row_with_a_window_that_fills_the_cache_has_that_cache() -> None:
    """Offline throughput before V1 profiles the whole window as one step."""
    row = {**OLD, "model": "Llama-3.1-405B-FP8", "weights_dtype": "fp8", "gpu": "H100-SXM-80GB", "tp": "8",
           "input_len": "128", "output_len": "2048", "num_prompts": "4", "request_rate": "inf", "max_concurrency": "",
           "engine_args": "benchmark_throughput.py -tp 8 --max-model-len 91680"}  # fmt: skip
    resolved = target_of(row, device_of(row), workload_of(row)).resolved
    assert resolved.num_blocks == 5731
    assert not resolved.config.scheduler.enable_chunked_prefill


def test_row_faster_than_its_chip_repeats_prompts_that_the_cache_serves() -> None:
    row = {**OLD, "engine_version": "0.12.0", "num_prompts": "250", "request_rate": "inf", "max_concurrency": "8",
           "input_len": "64", "output_len": "4", "engine_args": "",
           "quality": "SUSPECT: 90% of FP8 peak in prefill"}  # fmt: skip
    workload = workload_of(row)
    assert workload.prompt_token_ids(3).tolist() == workload.prompt_token_ids(203).tolist()
    assert workload.prompt_token_ids(3).tolist() != workload.prompt_token_ids(4).tolist()
    assert target_of(row, device_of(row), workload).resolved.config.cache.enable_prefix_caching


IOG = {
    **{name: str(value) for name, value in RUN.items()},
    "source": "github IOG-Foundation/llm-inference-benchmarks@4990a80", "engine_version": "0.8.5",
    "gpu": "H100-PCIe-80GB", "input_len": "400", "num_prompts": "20", "max_concurrency": "", "dataset": "sharegpt",
}  # fmt: skip


def test_row_of_a_series_finds_the_prompts_of_the_run_before_in_the_cache() -> None:
    """IOG sends the same 200 prompts at 32, 16, 8, 4 and 1 per second to one server."""
    first, second = (predict_row({**IOG, "request_rate": rate}) for rate in ("32.0", "16.0"))
    unrelated = predict_row({**IOG, "request_rate": "16.0", "source": "elsewhere"})
    assert not was_served_before({**IOG, "request_rate": "32.0"})
    assert second["ttft_p99_ms"] < 0.8 * unrelated["ttft_p99_ms"] < first["ttft_p99_ms"]


def test_arrivals_end_when_the_rate_says_or_as_the_seed_of_a_series_does() -> None:
    """IOG: 200 requests at 1/s to an H100 with an 8B model took 190.17 s, of which the last answer 2.6 s."""
    cells = {**IOG, "num_prompts": "200", "request_rate": "4.0"}
    assert workload_of(cells).arrival_s[-1] == pytest.approx(187.584 / 4.0, abs=1e-3)
    assert workload_of({**cells, "source": "elsewhere"}).arrival_s[-1] == pytest.approx(50.0)


def test_row_of_a_series_that_the_cache_cannot_hold_is_served_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle of prompts through a smaller cache that drops the oldest block never hits."""
    cells = {**IOG, "model": "Qwen3-32B", "request_rate": "1.0", "num_prompts": "100", "input_len": "900"}
    again = predict_row(cells)
    monkeypatch.setattr("workbench.services.evaluate_e2e.was_served_before", lambda row: False)
    assert again["ttft_mean_ms"] == pytest.approx(predict_row(cells)["ttft_mean_ms"], rel=0.02)


def test_row_that_names_another_form_of_its_gpu_is_simulated_as_measured() -> None:
    page = "github gpustack/gpustack@47277d79 docs/performance-lab/qwen3-32b/h100.md"
    assert device_of({**OLD, "gpu": "H100-SXM-80GB", "source": page}).gpu.id == "h100-80g-pcie"
    assert device_of({**OLD, "gpu": "A100-SXM-80GB", "source": page}).gpu.id == "a100-80g-sxm"
    assert device_of({**OLD, "gpu": "H100-SXM-80GB", "source": "elsewhere"}).gpu.id == "h100-80g-sxm"


def test_row_with_a_trace_replays_it(tmp_path: Path) -> None:
    trace = [{"arrived_at": 5.0 + i, "input_toks": 100 + i, "output_toks": 3, "first_token_ts": 9, "last_token_ts": 9}
             for i in range(3)]  # fmt: skip
    write(tmp_path / "t.csv", trace)
    row = {**RUN, "len_dist": "per-request in t.csv"}
    workload = workload_of(row, tmp_path)
    assert workload.num_prompt_tokens.tolist() == [100, 101, 102]
    assert workload.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert len(workload_of(row, tmp_path / "elsewhere")) == 12


def test_trace_prediction_compares_percentiles_and_calibration_keeps_its_rows_out(tmp_path: Path) -> None:
    """A trace made by the simulator itself, 20 % slower: calibration finds the factor."""
    meta = tmp_path / "a100_x.meta.json"
    meta.write_text(json.dumps({"engine_kwargs": {"model": "Llama-3.1-8B", "max_num_seqs": 32}}))
    rows = [{"arrived_at": i * 0.2, "input_toks": 300, "output_toks": 40, "first_token_ts": 9.0, "last_token_ts": 9.0}
            for i in range(30)]  # fmt: skip
    from engine.executor.cost_model.calibrated import Adjustment
    from workbench.services import evaluate_trace as module

    path = write(tmp_path / "a100_x.csv", rows)
    simulate = module._simulator(module.read_trace(path), json.loads(meta.read_text()), path)
    first, last = simulate(Adjustment(prefill_factor=1.2, decode_factor=1.2), 1.0, 30)
    for row, a, b in zip(rows, first.tolist(), last.tolist(), strict=True):
        row["first_token_ts"], row["last_token_ts"] = a, b
    write(path, rows)
    plain = evaluate_trace(path, meta)
    assert plain["metrics"]["tpot_s"]["p50"]["error"] == pytest.approx(1 / 1.2 - 1, abs=0.03)
    calibrated = evaluate_trace(path, meta, 0.3)
    assert calibrated["calibrated_on"] == 9
    assert abs(calibrated["metrics"]["tpot_s"]["p50"]["error"]) < 0.03


def test_trace_counts_the_rows_that_no_server_can_have_answered(tmp_path: Path) -> None:
    good = {"arrived_at": 5.0, "input_toks": 8, "output_toks": 4, "first_token_ts": 6.0, "last_token_ts": 7.0}
    rows = [good, good, {**good, "first_token_ts": 1.5}, {**good, "last_token_ts": "inf"}, {**good, "output_toks": 0}]
    trace = read_trace(write(tmp_path / "t.csv", rows))
    assert (trace.requests.read, trace.requests.used) == (5, 2)
    assert list(trace.requests.skipped.values()) == [1, 1, 1]
    assert trace.problems[0].startswith("1 dropped: the first token came before its request arrived")
    assert trace.problems[0].endswith("(line 4)")


@pytest.mark.parametrize("cache", [0.75, pytest.param(1.0, marks=pytest.mark.slow)])
def test_trace_that_fills_the_cache_is_calibrated_with_its_size(cache: float, tmp_path: Path) -> None:
    """A server whose cache is smaller than predicted runs fewer requests a step: no factor on steps can say that."""
    meta = tmp_path / "m.json"
    options = {"model": "meta-llama/Llama-3.1-8B", "max_num_seqs": 128, "max_model_len": 8192}
    meta.write_text(json.dumps({"engine_kwargs": options, "hardware": "rtx-4090", "vllm_version": "0.19.0"}))
    rng = np.random.default_rng(1)
    rows = [{"arrived_at": i * 0.1, "input_toks": int(rng.integers(300, 2000)), "last_token_ts": i + 2.0,
             "output_toks": int(rng.integers(100, 500)), "first_token_ts": i + 1.0} for i in range(160)]  # fmt: skip
    from engine.executor.cost_model.calibrated import Adjustment
    from workbench.services import evaluate_trace as module

    path = write(tmp_path / "x.csv", rows)
    simulate = module._simulator(module.read_trace(path), json.loads(meta.read_text()), path)
    first, last = simulate(Adjustment(prefill_factor=1.1, decode_factor=1.1), cache, len(rows))
    for row, a, b in zip(rows, first.tolist(), last.tolist(), strict=True):
        row["first_token_ts"], row["last_token_ts"] = a, b
    write(path, rows)
    found = evaluate_trace(path, meta, 0.2)
    assert found["adjustment"]["kv_cache_factor"] == pytest.approx(cache, abs=0.04)
    assert max(abs(each["error"]) for each in found["metrics"]["tpot_s"].values()) < 0.05
    assert max(abs(each["error"]) for each in found["metrics"]["e2el_s"].values()) < 0.03


def test_size_of_the_cache_that_the_server_printed_is_taken(tmp_path: Path) -> None:
    from workbench.services import evaluate_trace as module

    assert module._num_blocks({"num_gpu_blocks": 2048}) == 2048
    assert module._num_blocks(None) is None


def test_trace_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"a": 1}])
    meta = tmp_path / "m.json"
    meta.write_text("[]")
    with pytest.raises(ScenarioError, match=r"t\.csv: is not a per-request trace"):
        evaluate_trace(path, meta)


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        ({"input_toks": "1e12"}, {}, "is not from 1 to 10000000"),
        ({}, [1], "must hold an object with engine_kwargs"),
        ({}, {"tensor_parallel_size": "two"}, "tensor_parallel_size must be a whole number"),
    ],
)
def test_trace_that_cannot_be_replayed_says_so(
    tmp_path: Path, cells: dict[str, object], options: object, message: str
) -> None:
    meta = tmp_path / "m.json"
    meta.write_text(json.dumps({"engine_kwargs": options, "model": "Llama-3.1-8B"}))
    row = {"arrived_at": 0, "input_toks": 3, "output_toks": 4, "first_token_ts": 1.0, "last_token_ts": 2.0} | cells
    with pytest.raises(ScenarioError, match=message):
        evaluate_trace(write(tmp_path / "a100_x.csv", [row, row]), meta)
