"""The command as a user runs it: another process, its two streams and its exit code."""

from __future__ import annotations

import http.server
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

SCENARIO = """\
name: small
model: tiny
engine: {max_model_len: 256, num_blocks: 64, threads: 1}
workload:
  num_requests: 6
  arrivals: {kind: all_at_once}
  classes:
    - {name: a, input_tokens: {kind: constant, value: 20}, output_tokens: {kind: constant, value: 4}}
search:
  trials: 4
  objective: output_tokens_per_s
  space:
    max_num_seqs: {low: 2, high: 64}
"""
COMMAND = (sys.executable, "-c", "from workbench.cli.main import main; main()")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def workbench(tmp_path: Path) -> Run:
    """Runs a command in `tmp_path` to its end."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.fixture
def start(tmp_path: Path) -> Callable[[Sequence[object]], subprocess.Popen[str]]:
    """Starts a command in a session of its own, as a shell does with a job."""

    def begin(words: Sequence[object]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *map(str, words)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Where the tests run as a background job SIGINT is ignored, and children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return begin


class _Broken(http.server.BaseHTTPRequestHandler):
    """Lists a model and fails every completion."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(200, b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(500, b'{"error": {"message": "boom"}}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def broken_server() -> Iterator[str]:
    """The address of a server that fails every completion."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
