"""The exported router, run by a real nginx in front of servers that say who they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from workbench.report.export.facts import DeploymentFacts, PoolFacts, RouterFacts
from workbench.report.export.nginx import nginx_config

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light")
ONE = (PoolFacts(name="all", options=(), replicas=2, max_replicas=2),)
TWO = (
    PoolFacts(name="short", options=(), replicas=1, max_replicas=1, max_prompt_tokens=100),
    PoolFacts(name="long", options=(), replicas=1, max_replicas=1),
)
Answer = tuple[int, str, dict[str, str]]


class Backend(BaseHTTPRequestHandler):
    """Answers with the port it listens on."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = str(self.server.server_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def backends() -> Iterator[tuple[str, str]]:
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Backend) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    first, second = (str(server.server_address[1]) for server in servers)
    yield first, second
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def start(tmp_path: Path, backends: tuple[str, str]) -> Iterator[Callable[..., Callable[..., Answer]]]:
    """Runs a router over the two backends and gives a function that sends it a prompt."""
    pid = tmp_path / "pid"

    def run(router: RouterFacts, pools: tuple[PoolFacts, ...] = ONE) -> Callable[..., Answer]:
        text = nginx_config(facts_of(pools), router, lambda pool: [f"{pool.name}-{n}" for n in range(pool.replicas)])
        for name, port in zip(["all-0", "all-1"] if pools is ONE else ["short-0", "long-0"], backends, strict=True):
            text = text.replace(f"server {name}:8000", f"server 127.0.0.1:{port}")
        port = free_port()
        text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        folders = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
        config = tmp_path / "nginx.conf"
        config.write_text(text.replace("http {", f"http {{ access_log off; {folders}", 1), encoding="utf-8")
        command = [str(NGINX), "-c", str(config), "-e", f"{tmp_path}/log", "-g", f"pid {pid};"]
        subprocess.run(command, check=True)  # returns when it listens
        return lambda prompt, **headers: send(port, prompt, headers)

    yield run
    if pid.exists():
        os.kill(int(pid.read_text()), signal.SIGTERM)


def facts_of(pools: tuple[PoolFacts, ...]) -> DeploymentFacts:
    return DeploymentFacts(
        name="chat",
        model="m",
        vllm_version="0.11.2",
        image="i",
        gpus_per_replica=1,
        gpu=None,
        pools=pools,
        scale_at_waiting=5,
        provenance=(),
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def send(port: int, prompt: str, headers: dict[str, str]) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, json.dumps({"prompt": prompt}).encode(), named)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode(), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def router(**values: Any) -> RouterFacts:
    return RouterFacts(**{"routing": "round_robin", "header": "X-Prefix-Key", **values})


def test_rate_limit_lets_the_burst_through_and_answers_429_to_the_rest(start: Callable[..., Any]) -> None:
    ask = start(router(requests_per_s=0.1, burst=2, per_client=True))
    answers = [ask("hi") for _ in range(5)]
    assert [code for code, _, _ in answers] == [200, 200, 200, 429, 429]
    _, body, headers = answers[-1]
    assert json.loads(body)["error"]["code"] == 429
    assert (headers["Content-Type"], headers["Retry-After"]) == ("application/json", "1")


def test_pools_take_prompts_by_their_length(start: Callable[..., Any], backends: tuple[str, str]) -> None:
    ask = start(router(), TWO)
    assert [ask("x" * length)[1] for length in (10, 300, 500, 40_000)] == [backends[0]] * 2 + [backends[1]] * 2


def test_prefix_hash_keeps_a_prefix_at_one_replica_and_uses_both(
    start: Callable[..., Any], backends: tuple[str, str]
) -> None:
    ask = start(router(routing="prefix_hash"))
    places = {key: {ask("hi", X_Prefix_Key=key)[1] for _ in range(3)} for key in "abcdefgh"}
    assert all(len(each) == 1 for each in places.values())
    assert set.union(*places.values()) == set(backends)
    assert {ask("hi")[1] for _ in range(24)} == set(backends)


@pytest.mark.parametrize("routing", ["random", "round_robin", "least_loaded", "least_kv"])
def test_other_routings_use_both_replicas(routing: str, start: Callable[..., Any], backends: tuple[str, str]) -> None:
    ask = start(router(routing=routing, max_in_flight=64))
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask, ["hi"] * 32))
    assert {code for code, _, _ in answers} == {200}
    assert {body for _, body, _ in answers} == set(backends)
