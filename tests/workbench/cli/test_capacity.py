"""`budget`, `doctor` and `export` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Run

MODEL = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "a100-80g-sxm")
SATURATED = "\n".join(
    f"INFO 03-17 15:38:{number}0 [loggers.py:259] Engine 000: Avg prompt throughput: 900.0 tokens/s, Avg generation "
    f"throughput: 800.0 tokens/s, Running: 40 reqs, Waiting: {9 * number} reqs, GPU KV cache usage: 99.1%, Prefix "
    "cache hit rate: 41.0%"
    for number in range(6)
)


def test_budget_takes_lengths_in_every_spelling(workbench: Run) -> None:
    expected = {"4096": 228.57, "8192": 114.28, "32768": 28.57, "131072": 7.14}
    for lens in (
        ("--max-model-len", "4096,8192,32k", "--max-model-len", "131072"),
        ("--max-model-len", "4096", "8192", "32768", "131072"),
    ):
        done = workbench("budget", *MODEL, "--kv-bytes", "50GiB", *lens, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["max_concurrency"] == expected


def test_budget_that_does_not_start_says_what_would(workbench: Run) -> None:
    words = ("budget", "--model", "Llama-3.1-70B", "--gpu", "a100-80g-sxm")
    shown = workbench(*words)
    assert shown.returncode == 0
    assert "DOES NOT START" in shown.stdout
    assert "would start with 4 GPUs" in shown.stdout
    assert workbench(*words, "--check").returncode == 1


def test_budget_of_an_unknown_model_is_a_users_error(workbench: Run) -> None:
    done = workbench("budget", "--model", "nope", "--gpu", "l4")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nope" in done.stderr


def test_doctor_reads_a_log_and_names_cause_and_change(workbench: Run, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(SATURATED, encoding="utf-8")
    shown = workbench("doctor", str(log))
    assert shown.returncode == 0
    assert "1. kv_cache_full" in shown.stdout
    assert "change: kv_cache_dtype = fp8" in shown.stdout
    found = json.loads(workbench("doctor", str(log), "--json").stdout)
    assert (found["source"], found["healthy"]) == ("vllm log", False)
    assert found["findings"][0]["evidence"]["kv_usage"] == 0.991


def test_doctor_of_a_healthy_log_finds_nothing(workbench: Run, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(SATURATED.replace("Waiting: ", "Waiting: 0 reqs, was ").replace("99.1%", "50.0%"), encoding="utf-8")
    assert "nothing found" in workbench("doctor", str(log)).stdout


def test_export_writes_an_executable_script(workbench: Run, tmp_path: Path) -> None:
    plan, script = tmp_path / "plan.yaml", tmp_path / "start.sh"
    plan.write_text("deployment: {model: Qwen/Qwen3-8B, engine: {max_num_seqs: 64}}\n", encoding="utf-8")
    done = workbench(
        "export", str(plan), "--format", "vllm-args", "--option", "served-model-name=chat", "--out", str(script)
    )
    assert done.returncode == 0, done.stderr
    assert script.stat().st_mode & 0o111
    assert "--served-model-name chat" in script.read_text(encoding="utf-8")


def test_export_of_an_unknown_option_is_a_users_error(workbench: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("deployment: {model: m, options: {max-num-seq: 3}}\n", encoding="utf-8")
    done = workbench("export", str(plan))
    assert (done.returncode, done.stdout) == (2, "")
    assert "the nearest is --max-num-seqs" in done.stderr
