"""Load over HTTP against a server with every fault there is; each becomes a row with its reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from engine.errors import ConfigError
from workbench.loadgen.endpoint import EndpointTarget
from workbench.loadgen.errors import RunFailed
from workbench.metrics.records import Outcome
from workbench.workload.records import ClosedLoopPacing, Workload

MakeWorkload = Callable[..., Workload]
DEADLINE_S = 30.0

# The number of tokens asked for chooses what the server does.
STATUS_500, STATUS_429, CUT, GARBAGE, SILENT, EARLY_END, NO_STREAM, ERROR_EVENT, PACKED = range(101, 110)


class Handler(BaseHTTPRequestHandler):
    """An OpenAI-compatible server, and its failures."""

    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(self.server.status, self.server.listing)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.keys.append(self.headers.get("Authorization"))
            self.server.connections.add(self.client_address)
            self.server.num_open += 1
            self.server.most_open = max(self.server.most_open, self.server.num_open)
        try:
            self._complete(body["max_tokens"])
        except OSError:  # the client left
            self.close_connection = True
        finally:
            with self.server.lock:
                self.server.num_open -= 1

    def _complete(self, count: int) -> None:
        if count == STATUS_500:
            self._answer(500, {"error": {"message": "the engine broke"}})
        elif count == STATUS_429:
            self._answer(429, {"error": {"message": "queue is full"}})
        elif count == NO_STREAM:
            self._answer(200, {"choices": [{"text": "whole"}]})
        elif count == SILENT:
            self.server.released.wait(DEADLINE_S)
            self.close_connection = True
        else:
            self._stream(count)

    def _stream(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        num_events, packed = (2, 3) if count >= STATUS_500 else (count, 1)
        for number in range(num_events):
            is_last = number == num_events - 1 and count != EARLY_END
            reason = '"length"' if is_last and count != CUT else "null"
            self._chunk(f'data: {{"choices":[{{"text":"{"x" * packed}","finish_reason":{reason}}}]}}\n\n')
        if count == CUT:
            self.close_connection = True  # without the last chunk
            return
        if count == GARBAGE:
            self._chunk("<html>oops</html>\n")
        if count == ERROR_EVENT:
            self._chunk('data: {"error": {"message": "out of blocks"}}\n\n')
        total = num_events * packed
        if count != EARLY_END:
            self._chunk(f'data: {{"choices":[],"usage":{{"prompt_tokens":4,"completion_tokens":{total}}}}}\n\n')
            self._chunk("data: [DONE]\n\n")
        self._chunk("")

    def _chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
        self.wfile.flush()

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class FakeServer(ThreadingHTTPServer):
    """Listens on a free port; remembers what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.listing = 200, {"data": [{"id": "fake", "max_model_len": 77}]}
        self.lock, self.released = threading.Lock(), threading.Event()
        self.bodies: list[Any] = []
        self.keys: list[str | None] = []
        self.connections: set[Any] = set()
        self.num_open = self.most_open = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection is part of the tests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.released.set()
        found.shutdown()
        thread.join()


def asking(workload: Workload, counts: list[int]) -> Workload:
    return replace(workload, max_output_tokens=np.array(counts, dtype=np.int64))


def test_run_every_fault_is_a_failed_row_with_its_reason(server: FakeServer, make_workload: MakeWorkload) -> None:
    faults = {
        STATUS_500: "HTTP 500: the engine broke",
        STATUS_429: "HTTP 429: queue is full",
        CUT: "(after 2 events)",
        GARBAGE: "not an event stream: <html>oops</html>",
        SILENT: "no whole answer within 1.5 s",
        EARLY_END: "the stream ended early, after 2 events",
        NO_STREAM: "not an event stream",
        ERROR_EVENT: "the server reports: out of blocks",
    }
    workload = asking(make_workload([0.0] * (len(faults) + 2)), [3, *faults, PACKED])
    record = EndpointTarget(server.url, timeout_s=1.5).run(workload)
    table = record.requests
    assert table.outcome.tolist() == [Outcome.COMPLETED, *[Outcome.FAILED] * len(faults), Outcome.COMPLETED]
    for row, reason in enumerate(faults.values(), start=1):
        assert reason in table.errors[row]
    assert table.num_output_tokens[[0, -1]].tolist() == [3, 6]
    assert table.num_events[[0, -1]].tolist() == [3, 2]
    assert any("several tokens per event" in note for note in record.notes)


def test_run_sends_what_the_workload_asks(server: FakeServer, make_workload: MakeWorkload) -> None:
    workload = make_workload([0.0, 0.05, 0.1], output_tokens=4)
    target = EndpointTarget(f"{server.url}/v1")
    assert target.limits.max_model_len == 77
    seen: list[Any] = []
    record = target.run(workload, on_progress=seen.append)
    asked = [workload.prompt_token_ids(row).tolist() for row in range(3)]
    assert sorted(body["prompt"] for body in server.bodies) == sorted(asked)  # a busy server takes them in any order
    assert {(body["model"], body["max_tokens"], body["ignore_eos"]) for body in server.bodies} == {("fake", 4, True)}
    table = record.requests
    assert table.arrival_s.tolist() == [0.0, 0.05, 0.1]
    assert (table.sent_s >= table.arrival_s).all()
    assert table.num_output_tokens.tolist() == [4, 4, 4]
    assert table.num_preemptions.tolist() == [-1, -1, -1]
    assert len(record.steps) == 0
    assert record.engine["block_size"] is None
    assert record.engine["load"]["asked_per_s"] == pytest.approx(20.0)
    assert record.notes[0].startswith("load: asked 20/s, sent ")
    assert (seen[-1].num_sent, seen[-1].num_ended, seen[-1].num_output_tokens) == (3, 3, 12)


def test_run_closed_loop_keeps_its_concurrency_and_thinks(server: FakeServer, make_workload: MakeWorkload) -> None:
    pacing = ClosedLoopPacing(concurrency=2, think_time_s=0.02)
    record = EndpointTarget(server.url).run(make_workload([0.0] * 8, closed_loop=pacing))
    assert record.requests.outcome.tolist() == [Outcome.COMPLETED] * 8
    assert server.most_open <= 2
    assert len(server.connections) <= 2  # reused
    arrivals = np.sort(record.requests.arrival_s)
    assert arrivals[:2].tolist() == [0.0, 0.0]
    assert (arrivals[2:] >= 0.02).all()


def test_run_cap_holds_requests_back_and_counts_it_as_lag(server: FakeServer, make_workload: MakeWorkload) -> None:
    workload = asking(make_workload([0.0, 0.0, 0.0], max_concurrency=1), [SILENT, 2, 2])
    record = EndpointTarget(server.url, timeout_s=0.5).run(workload)
    assert record.requests.outcome.tolist() == [Outcome.FAILED, Outcome.COMPLETED, Outcome.COMPLETED]
    assert record.requests.sent_s[1] > 0.4


def test_run_deadline_leaves_open_requests_unfinished(server: FakeServer, make_workload: MakeWorkload) -> None:
    workload = asking(make_workload([0.0, 0.0, 0.1, 60.0], max_concurrency=2), [2, SILENT, SILENT, 2])
    record = EndpointTarget(server.url).run(workload, deadline_s=0.5)
    assert record.requests.outcome.tolist() == [Outcome.COMPLETED, Outcome.UNFINISHED, Outcome.UNFINISHED]
    assert record.duration_s >= 0.5


def test_run_server_that_goes_away_fails_the_rest(server: FakeServer, make_workload: MakeWorkload) -> None:
    target = EndpointTarget(server.url)
    server.shutdown()
    server.server_close()
    record = target.run(make_workload([0.0, 0.1]))
    assert record.requests.outcome.tolist() == [Outcome.FAILED, Outcome.FAILED]
    assert "refused" in record.requests.errors[0]


def worker_ids() -> list[int]:
    """Processes of load generators that this one started."""
    listed = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="], capture_output=True, text=True, check=True
    )
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "locust_worker" in line]


@pytest.mark.parametrize("cause", ["killed worker", "Ctrl-C"])
def test_run_that_ends_by_force_leaves_no_worker(server: FakeServer, make_workload: MakeWorkload, cause: str) -> None:
    workload = asking(make_workload([0.0, 0.0]), [2, SILENT])

    def interrupt() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while server.num_open == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        if cause == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            os.kill(worker_ids()[0], signal.SIGKILL)

    thread = threading.Thread(target=interrupt)
    # A shell starts its background jobs with SIGINT ignored, and Python then leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        expected = KeyboardInterrupt if cause == "Ctrl-C" else RunFailed
        with pytest.raises(expected):
            EndpointTarget(server.url).run(workload)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert worker_ids() == []


def test_target_sends_the_key_of_the_environment(
    server: FakeServer, make_workload: MakeWorkload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret")
    EndpointTarget(server.url, api_key_env="SOME_KEY").run(make_workload([0.0]))
    assert server.keys == ["Bearer s3cret"]


def test_target_without_its_key_is_refused(server: FakeServer) -> None:
    with pytest.raises(ConfigError, match="variable NO_SUCH_KEY is not set"):
        EndpointTarget(server.url, api_key_env="NO_SUCH_KEY")


def test_target_where_nothing_listens_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no OpenAI-compatible server answers at http://127\.0\.0\.1:9"):
        EndpointTarget("http://127.0.0.1:9")


def test_target_with_another_model_names_those_served(server: FakeServer) -> None:
    with pytest.raises(ConfigError, match=r"serves fake \(got 'gpt'\)"):
        EndpointTarget(server.url, model="gpt")


@pytest.mark.parametrize(
    ("status", "message"), [(401, "refuses the key"), (404, "does not list its models"), (500, "answers HTTP 500")]
)
def test_target_whose_listing_fails_says_why(server: FakeServer, status: int, message: str) -> None:
    server.status = status
    with pytest.raises(ConfigError, match=message):
        EndpointTarget(server.url)


def test_target_without_listing_takes_the_given_model(server: FakeServer) -> None:
    server.status = 404
    assert EndpointTarget(server.url, model="mine").limits.max_model_len is None
