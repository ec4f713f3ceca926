"""Servers that are started for a configuration: told their parameters, measured, and gone afterwards."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from engine.errors import ConfigError
from workbench.loadgen.errors import RunFailed, ServerFailed
from workbench.scenario import Scenario, ScenarioError, parse_scenario
from workbench.scenario.target import EndpointTarget
from workbench.services.evaluate import run_scenario
from workbench.services.launch import launch_command
from workbench.services.sweep import run_sweep

SERVER = Path(__file__).with_name("small_server.py")
DEADLINE_S = 30.0
TEXT = """
name: launched
model: Qwen/Qwen2.5-7B-Instruct
engine: {max_model_len: 512}
target: {kind: simulated, gpu: a100-80g-sxm}
workload:
  num_requests: 10
  arrivals: {kind: constant, rate: 20}
  classes:
    - {name: a, input_tokens: 20, output_tokens: 4}
search:
  trials: 3
  sampler: grid
  objective: requests_per_s
  space:
    max_num_seqs: {choices: [4, 8]}
    tensor_parallel_size: {choices: [1, 2]}
"""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the logs of servers that failed, which are kept."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def scenario(*overrides: str) -> Scenario:
    return parse_scenario(TEXT, source="launched.yaml", overrides=list(overrides), directory=Path())


def launch(journal: Path, mode: str = "well", words: str = "{options}", **more: str) -> str:
    command = f"{sys.executable} {SERVER} {journal} {mode} {{port}} {words}"
    fields = ", ".join(f"{name}: {value}" for name, value in more.items())
    return f"{{kind: endpoint, model: m, launch: {command!r}{', ' if fields else ''}{fields}}}"


def served(target: str) -> Scenario:
    return scenario("search=null", f"target={target}")


def test_launch_command_tells_a_server_every_parameter_in_its_own_words() -> None:
    spec = EndpointTarget(
        kind="endpoint", launch="vllm serve {model} --port {port} {options}", url="http://gpu-box:8000"
    )
    there = scenario("engine.enable_prefix_caching=false")
    params = {"max_num_seqs": 32, "tensor_parallel_size": 2, "quantization": "fp8"}
    words, url = launch_command(there, spec.model_copy(update={"launch": f"{sys.executable} {spec.launch}"}), params)
    assert url == "http://gpu-box:8000"
    assert words[1:] == [
        *("vllm", "serve", "Qwen/Qwen2.5-7B-Instruct", "--port", "8000"),
        *("--tensor-parallel-size", "2", "--quantization", "fp8", "--max-model-len", "512"),
        *("--no-enable-prefix-caching", "--max-num-seqs", "32"),
    ]


def test_launch_command_fills_in_settings_and_single_values() -> None:
    text = f"{sys.executable} serve {{settings}} -tp={{tensor_parallel_size}} --seqs={{max_num_seqs}} --port {{port}}"
    spec = EndpointTarget(kind="endpoint", launch=text)
    params = {"max_num_seqs": 7, "kv_cache_dtype": "float32"}
    words, url = launch_command(scenario("engine.enable_prefix_caching=true"), spec, params)
    settings = ["--set", "max_model_len=512", "--set", "enable_prefix_caching=true", "--set", "max_num_seqs=7"]
    settings += ["--set", "kv_cache_dtype=float32"]
    assert words[1:-2] == ["serve", *settings, "-tp=1", "--seqs=7"]
    assert url == f"http://127.0.0.1:{words[-1]}"


def test_launch_command_refuses_what_vllm_does_not_have() -> None:
    spec = EndpointTarget(kind="endpoint", launch=f"{sys.executable} {{port}} {{options}}")
    with pytest.raises(ConfigError, match="kv_policy contiguous is for this project's engine only"):
        launch_command(scenario(), spec, {"kv_policy": "contiguous"})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{kind: endpoint}", "target: needs url"),
        ("{kind: endpoint, launch: 'vllm serve'}", r"must have \{port\}"),
        ("{kind: endpoint, launch: 'vllm \"serve {port}'}", "Close the quotes"),
        ("{kind: endpoint, launch: 'vllm {modle} {port}'}", "did you mean 'model'"),
    ],
)
def test_launch_that_cannot_work_is_refused_when_the_scenario_is_read(target: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        served(target)


def test_confirm_on_a_server_that_is_not_told_a_searched_parameter_is_refused() -> None:
    target = "{kind: endpoint, launch: 'vllm serve --port {port} --max-num-seqs {max_num_seqs}'}"
    with pytest.raises(ScenarioError, match="does not tell the server its tensor_parallel_size"):
        scenario(f"search.confirm.target={target}")
    with pytest.raises(ScenarioError, match="set where it is started"):
        scenario("search.confirm.target={kind: endpoint, url: 'http://localhost:8000'}")


def test_sweep_whose_server_is_no_command_is_refused_before_it_searches(tmp_path: Path) -> None:
    target = "{kind: endpoint, launch: 'nonesuch --port {port} {options}'}"
    with pytest.raises(ConfigError, match="'nonesuch' is not a command on this machine"):
        run_sweep(scenario(f"search.confirm.target={target}"), out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_sweep_confirms_on_servers_of_their_own_in_interleaved_order(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    target = launch(journal, words="{max_num_seqs} {tensor_parallel_size}")
    one_by_one = ("engine.max_num_seqs=1", "workload.arrivals={kind: all_at_once}")
    spec = scenario(*one_by_one, f"search.confirm={{finalists: 1, repeats: 2, target: {target}}}")
    found = run_sweep(spec, out=tmp_path / "out")
    assert found.confirmation is not None
    assert found.confirmation.target == "endpoint"
    (finalist,) = found.confirmation.finalists
    params = finalist.record.params
    default, rival = "start 1 1", f"start {params['max_num_seqs']} {params['tensor_parallel_size']}"
    assert rival != default
    expected = [line for start in (default, rival, rival, default) for line in (start, "end")]
    assert journal.read_text().splitlines() == expected
    for repeat in finalist.repeats:  # a busy machine may spoil a repeat, which then says so
        assert (repeat.value is None) == (repeat.reason is not None)


def test_run_on_a_launched_server_that_dies_fails_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="the server ended while it was measured \\(exit code 9"):
        run_scenario(served(launch(tmp_path / "j", "frail")))


def test_run_on_a_server_that_never_answers_ends_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"does not answer at .* after 0\.5 s .*loading weights.*Raise ready_within"):
        run_scenario(served(launch(tmp_path / "j", "deaf", ready_within="500ms")))
    assert (tmp_path / "j").read_text().splitlines() == ["start --max-model-len 512", "end"]
    (log,) = tmp_path.glob("workbench-server-*/log")
    assert log.read_text() == "loading weights\n"


def test_run_where_another_server_has_the_address_is_refused(tmp_path: Path) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        target = launch(tmp_path / "j", url=f"'http://127.0.0.1:{other.server_port}'")
        with pytest.raises(ConfigError, match="would be measured in its place"):
            run_scenario(served(target))
        other.shutdown()
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_launched_server_ends_with_whoever_started_it(
    how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    journal = tmp_path / "journal"
    command = [sys.executable, str(SERVER), str(journal), "stubborn", str(port)]
    script = (
        "import sys, time; from workbench.loadgen import launched; launched.GRACE_S = 0.2\n"
        f"server = launched.LaunchedServer({command!r}, 'http://127.0.0.1:{port}')\n"
        "server.wait_until_ready(20); print('ready', flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    pids = [int(pid) for pid in journal.read_text().splitlines()[0].split()[1:]]
    owner.send_signal(how)
    owner.communicate(timeout=DEADLINE_S)
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(DEADLINE_S)


@pytest.mark.slow
def test_sweep_searches_on_a_simulated_device_and_confirms_on_workbench_serve(tmp_path: Path) -> None:
    serve = f"{sys.executable} -c 'from workbench.cli.main import main; main()' serve"
    target = f'{{kind: endpoint, launch: "{serve} --model {{model}} --port {{port}} {{settings}}"}}'
    spec = scenario(
        *("model=tiny", "engine={max_model_len: 512, max_num_seqs: 1}", "workload.arrivals={kind: all_at_once}"),
        "search.space={max_num_seqs: {choices: [4, 8]}}",
        f"search.confirm={{finalists: 1, repeats: 1, target: {target}}}",
    )
    found = run_sweep(spec, out=tmp_path)
    assert found.confirmation is not None
    for each in (found.confirmation.default, *found.confirmation.finalists):
        assert each is not None
        (repeat,) = each.repeats
        # A busy machine may spoil a run, which then says so; that the server came up is the point.
        assert repeat.value is not None or (repeat.reason or "").startswith(("SUSPECT", "INVALID"))
