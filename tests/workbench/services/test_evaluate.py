"""Predictions against measurements: the tables' formats, and what cannot be predicted."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from workbench.scenario import ScenarioError
from workbench.services.evaluate_e2e import evaluate_e2e
from workbench.services.evaluate_ops import evaluate_ops
from workbench.services.evaluate_trace import evaluate_trace


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


def test_ops_error_is_predicted_over_measured_and_unsupported_rows_are_null(tmp_path: Path) -> None:
    result = evaluate_ops(write(tmp_path / "t.csv", [GEMM, {**GEMM, "dtype": "nvfp4"}, {**GEMM, "gpu": "TPU"}]))
    first, *others = result["rows"]
    assert first["error"] == pytest.approx(first["predicted_us"] / 20.0 - 1.0)
    assert all(row["predicted_us"] is None and row["error"] is None for row in others)
    assert result["median"] == pytest.approx(abs(first["error"]))
    assert first["m"] == "128"


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


def test_trace_prediction_compares_percentiles_and_calibration_keeps_its_rows_out(tmp_path: Path) -> None:
    """A trace made by the simulator itself, 20 % slower: calibration finds the factor."""
    meta = tmp_path / "a100_x.meta.json"
    meta.write_text(json.dumps({"engine_kwargs": {"model": "Llama-3.1-8B", "max_num_seqs": 32}}))
    rows = [{"arrived_at": i * 0.2, "input_toks": 300, "output_toks": 40, "first_token_ts": 1.0, "last_token_ts": 2.0}
            for i in range(30)]  # fmt: skip
    from engine.executor.cost_model.calibrated import Adjustment
    from workbench.services import evaluate_trace as module

    path = write(tmp_path / "a100_x.csv", rows)
    simulate = module._simulator(module.read_trace(path), json.loads(meta.read_text()), path)
    first, last = simulate(Adjustment(prefill_factor=1.2, decode_factor=1.2), 30)
    for row, a, b in zip(rows, first.tolist(), last.tolist(), strict=True):
        row["first_token_ts"], row["last_token_ts"] = a, b
    write(path, rows)
    plain = evaluate_trace(path, meta)
    assert plain["metrics"]["tpot_s"]["p50"]["error"] == pytest.approx(1 / 1.2 - 1, abs=0.03)
    calibrated = evaluate_trace(path, meta, 0.3)
    assert calibrated["calibrated_on"] == 9
    assert abs(calibrated["metrics"]["tpot_s"]["p50"]["error"]) < 0.03


def test_trace_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"a": 1}])
    meta = tmp_path / "m.json"
    meta.write_text("[]")
    with pytest.raises(ScenarioError, match=r"t\.csv: is no per-request trace"):
        evaluate_trace(path, meta)
