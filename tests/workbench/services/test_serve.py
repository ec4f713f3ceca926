"""`workbench serve` as a process, and the same scenario in process and through it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from workbench.metrics.records import Outcome
from workbench.scenario import parse_scenario
from workbench.services.evaluate import run_scenario
from workbench.services.serve import parse_settings
from workbench.services.targets import build_target

COMMAND = [sys.executable, "-c", "from workbench.cli.main import main; main()"]
DEADLINE_S = 60.0
SCENARIO = """
name: both-ways
model: tiny
engine: {max_model_len: 512, device_memory: 64MiB, threads: 1}
workload:
  num_requests: 30
  arrivals: {kind: poisson, rate: 40}
  classes:
    - name: chat
      weight: 2
      input_tokens: {kind: uniform, low: 1, high: 60}
      output_tokens: {kind: uniform, low: 1, high: 20}
    - name: long
      weight: 1
      input_tokens: {kind: constant, value: 300}
      output_tokens: {kind: uniform, low: 5, high: 40}
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = [
        part for value in ("device_memory=64MiB", "max_model_len=512", "threads=1") for part in ("--set", value)
    ]
    process = start("serve", "--model", "tiny", "--port", "0", "--served-model-name", "small", *settings)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"serving small on (http://127\.0\.0\.1:\d+)\n", line)
        assert found is not None, line + process.stderr.read()
        yield found[1]
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out, err) == (0, "", "")
        assert time.monotonic() - started < 5.0
    finally:
        process.kill()
        process.communicate()


def test_scenario_in_process_and_over_http_gives_the_same_token_counts(url: str) -> None:
    in_process = run_scenario(parse_scenario(SCENARIO)).record
    over_http = run_scenario(parse_scenario(f"{SCENARIO}\ntarget: {{kind: endpoint, url: '{url}'}}")).record
    for record in (in_process, over_http):
        assert record.requests.outcome.tolist() == [Outcome.COMPLETED] * 30
    assert over_http.requests.request_ids == in_process.requests.request_ids
    for column in ("arrival_s", "num_prompt_tokens", "num_output_tokens", "num_events", "class_index"):
        assert getattr(over_http.requests, column).tolist() == getattr(in_process.requests, column).tolist(), column
    assert over_http.engine["num_blocks"] == in_process.engine["num_blocks"]
    assert not [note for note in over_http.notes if not note.startswith("load:")]


def test_run_command_reports_rates_and_client_lag(url: str, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(f"{SCENARIO}\ntarget: {{kind: endpoint, url: '{url}/v1'}}\n", encoding="utf-8")
    done = subprocess.run(
        [*COMMAND, "run", str(scenario), "--json", "--out", str(tmp_path / "runs"), "--set", "seed=5"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["metrics"]["num_completed"] == 30
    load: dict[str, Any] = result["engine"]["load"]
    assert {"asked_per_s", "sent_per_s", "completed_per_s", "client_lag_s"} == set(load)
    assert load["client_lag_s"]["p50"] < 0.05


def test_run_command_where_nothing_listens_is_a_user_error(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(f"{SCENARIO}\ntarget: {{kind: endpoint, url: 'http://127.0.0.1:9'}}\n", encoding="utf-8")
    done = subprocess.run([*COMMAND, "run", str(scenario)], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 2
    assert done.stderr.startswith("error: target.url: no OpenAI-compatible server answers at http://127.0.0.1:9")


def test_serve_open_streams_do_not_hold_up_the_end() -> None:
    process = start("serve", "--model", "tiny", "--port", "0", "--set", "device_memory=64MiB", "--set", "threads=1")
    assert process.stderr is not None
    address = process.stderr.readline().split()[-1]
    body = {"prompt": [1], "max_tokens": 2000, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        assert answer.readline().startswith(b"data: ")
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)
        assert time.monotonic() - started < 5.0
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "block_sise=8"], "block_sise: not an engine parameter. did you mean 'block_size'?"),
        (["--set", "block_size"], "must look like name=value"),
        (["--set", "device_memory=1MiB"], "memory"),
        (["--model", "nonesuch"], "'nonesuch' is not a built-in model"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ],
)
def test_serve_wrong_configuration_is_a_user_error(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [*COMMAND, "serve", "--port", "0", *arguments], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert 1 <= len(done.stderr.splitlines()) <= 3


def test_serve_taken_port_is_a_user_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "serve", "--port", str(port)], capture_output=True, text=True, timeout=DEADLINE_S
        )
    assert done.returncode == 2
    assert f"port: cannot listen on 127.0.0.1:{port} (Address already in use)" in done.stderr


def test_parse_settings_reads_values_as_scenarios_do() -> None:
    assert parse_settings(["block_size=8", "engine.async_scheduling=true", "device_memory=1GiB"]) == {
        "block_size": 8,
        "async_scheduling": True,
        "device_memory": "1GiB",
    }


def test_endpoint_cannot_be_tuned() -> None:
    scenario = parse_scenario(f"{SCENARIO}\ntarget: {{kind: endpoint, url: 'http://127.0.0.1:9'}}")
    with pytest.raises(ConfigError, match="engine parameters of an endpoint are set where it was started"):
        build_target(scenario, {"block_size": 8})
