"""Whole commands in processes of their own: one JSON object on stdout; sweeps that are killed and go on."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from .conftest import Run

Start = Callable[[Sequence[object]], "subprocess.Popen[str]"]


def only_object(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Stdout as one JSON object with finite numbers."""
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout, parse_float=finite, parse_constant=finite)
    assert isinstance(values, dict)
    return values


def finite(text: str) -> float:
    assert math.isfinite(float(text))
    return float(text)


def wait_for(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def num_trials(out: Path) -> int:
    files = list(out.glob("*/study.json"))
    return len(json.loads(files[0].read_text())["trials"]) if files else 0


def children(pid: int) -> list[int]:
    """Processes that were started by `pid`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_every_command_prints_one_json_object(workbench: Run, scenario: Path) -> None:
    run = only_object(workbench("run", scenario, "--json"))
    assert run["metrics"]["num_completed"] == 6
    sweep = only_object(workbench("sweep", scenario, "--trials", 2, "--json"))
    assert [trial["number"] for trial in sweep["trials"]] == [0, 1]
    assert only_object(workbench("report", sweep["study"], "--json"))["report"].keys() == {"markdown", "html"}
    assert only_object(workbench("scenario", "validate", scenario, "--json"))["valid"] is True
    assert only_object(workbench("scenario", "show", scenario, "--json"))["workload"]["num_requests"] == 6
    assert "properties" in only_object(workbench("scenario", "schema", "--json"))
    assert len(only_object(workbench("catalog", "gpus", "--json"))["gpus"]) > 5


@pytest.mark.parametrize("kill", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_sweep_ended_in_the_middle_loses_nothing_and_goes_on(
    kill: str, workbench: Run, start: Start, scenario: Path, tmp_path: Path
) -> None:
    words = ["sweep", scenario, "--trials", 40, "--out", tmp_path / "out", "--json"]
    process = start(words)
    wait_for(lambda: num_trials(tmp_path / "out") >= 3)
    workers = children(process.pid)
    assert workers
    if kill == "SIGKILL":
        process.kill()
    elif kill == "SIGTERM":
        process.terminate()
    else:
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    _, stderr = process.communicate(timeout=30)
    assert "Traceback" not in stderr
    assert process.returncode == (-signal.SIGKILL if kill == "SIGKILL" else 1)
    wait_for(lambda: not any(map(is_running, workers)))
    study = next((tmp_path / "out").iterdir())
    before = json.loads((study / "study.json").read_text())["trials"]
    assert len(before) < 40
    result = only_object(workbench(*words, "--resume", "--trials", len(before) + 3))
    assert result["study"] == study.name
    assert result["trials"][: len(before)] == before
    assert [trial["number"] for trial in result["trials"]] == list(range(len(before) + 3))
    assert not list(study.glob(".writing-*"))


def test_second_sweep_of_the_same_study_is_refused_and_a_fresh_one_is_not(
    workbench: Run, start: Start, scenario: Path, tmp_path: Path
) -> None:
    words = ["sweep", scenario, "--out", tmp_path / "out", "--json"]
    process = start([*words, "--trials", 200])
    wait_for(lambda: num_trials(tmp_path / "out") >= 1)
    refused = workbench(*words, "--resume")
    fresh = only_object(workbench(*words, "--trials", 1))
    process.kill()
    process.communicate(timeout=30)
    assert refused.returncode == 2
    assert "another sweep is at work" in refused.stderr
    assert fresh["study"].endswith("-2")


def test_run_against_a_server_that_answers_nothing_useful_fails(
    workbench: Run, scenario: Path, broken_server: str
) -> None:
    done = workbench("run", scenario, "--set", f"target={{kind: endpoint, url: '{broken_server}'}}", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "INVALID"
    assert "boom" in done.stderr
    assert len(done.stderr.splitlines()) <= 3


SIMULATED = ("--set", "model=Qwen/Qwen2.5-7B-Instruct", "--set", "target={kind: simulated, gpu: a100-80g-sxm}",
             "--set", "engine={max_model_len: 256}")  # fmt: skip


def test_worker_joins_a_sweep_in_a_database_and_leaves_it_on_sigterm(
    workbench: Run, start: Start, scenario: Path, tmp_path: Path
) -> None:
    storage = ["--storage", f"sqlite:///{tmp_path}/study.db"]
    sweep = ["sweep", scenario, *SIMULATED, "--out", tmp_path / "out", *storage, "--json"]
    first = only_object(workbench(*sweep, "--trials", 1))
    again = start([*sweep, "--resume", "--trials", 400])
    wait_for(lambda: num_trials(tmp_path / "out") >= 3)
    worker = start(["worker", "--study", first["study"], *storage, "--json"])
    assert any(line.startswith("trial") for line in iter(worker.stderr.readline, ""))  # type: ignore[union-attr]
    worker.terminate()
    stdout, _ = worker.communicate(timeout=30)
    assert worker.returncode == 1
    assert json.loads(stdout)["stopped"] == "interrupted; its trials went back to the queue"
    again.terminate()
    again.communicate(timeout=30)
    assert again.returncode == 1
    whole = only_object(workbench(*sweep, "--resume", "--trials", num_trials(tmp_path / "out") + 2, "--workers", 2))
    assert [trial["number"] for trial in whole["trials"]] == list(range(len(whole["trials"])))
    assert {trial["state"] for trial in whole["trials"]} == {"COMPLETE"}
    assert [trial["num_lost"] for trial in whole["trials"]] == [0] * len(whole["trials"])


def test_run_is_reported_in_the_terms_of_other_tools(workbench: Run, scenario: Path) -> None:
    run = only_object(workbench("run", scenario, *SIMULATED, "--json"))
    ours, theirs = run["metrics"], only_object(workbench("report", run["run"], "--dialect", "vllm", "--json"))
    assert theirs["figures"]["tpot_ms"]["mean"] == pytest.approx(ours["tpot_s"]["mean"] * 1e3)
    assert theirs["figures"].keys() == theirs["definitions"].keys()
    shown = workbench("report", run["run"], "--dialect", "inference-perf")
    assert "normalized_time_per_output_token_ms" in shown.stdout
    assert workbench("report", run["run"], "--dialect", "vlm").stderr == "error: --dialect: did you mean 'vllm'?\n"
    missing = workbench("report", run["run"])
    assert (missing.returncode, "Add --dialect" in missing.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep", "small.yaml", "--budget", "soon"], "error: --budget: must be a duration such as 90s, 30m or 2h"),
        (["sweep", "small.yaml", "--budget", "0s"], "error: --budget: must be a duration"),
        (["sweep", "small.yaml", "--workers", "2"], "would slow each other. Use --workers 1"),
        (["sweep", "small.yaml", "--storage", "study.db"], "error: --storage study.db: is no URL"),
        (["worker", "--study", "s", "--storage", "postgresql://me:s3cret@127.0.0.1:1/x"], "me:***@127.0.0.1:1/x"),
    ],
)
def test_sweep_or_worker_that_cannot_start_says_why_in_one_line(
    words: list[str], message: str, workbench: Run, scenario: Path
) -> None:
    done = workbench(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "s3cret" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
