"""The load generator's process: `python -m workbench.loadgen.locust_worker PLAN RESULTS`.

Locust patches sockets and threads of its process, and an engine in the same process would stop its event loop, so it
gets one of its own. One Locust user dispatches: open loop, a greenlet per arrival; closed loop, a greenlet per client.
The plan comes from a file, progress goes to stdout, and the process ends with its parent: stdin closes then.
"""

from __future__ import annotations

import locust  # first: it patches what the others import  # isort: skip

import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore
from gevent.pool import Group
from gevent.socket import wait_read
from geventhttpclient.client import HTTPClientPool
from locust.env import Environment
from locust.exception import StopUser

from workbench.loadgen.endpoint_events import BadStream, EventReader, error_message
from workbench.loadgen.endpoint_plan import LoadPlan, LoadProgress, RequestResult
from workbench.metrics.records import Outcome

PATH = "/v1/completions"
_LEAD_S = 0.05
"""From the end of the preparations to time 0."""
_PROGRESS_S = 0.25
_MAX_CONNECTIONS = 50_000
_CONNECT_S = 30.0


class Load:
    """One run. Greenlets share it; none of them gives way between reading and writing."""

    def __init__(self, plan: LoadPlan, results: TextIO) -> None:
        self.plan, self.results = plan, results
        self.num_sent = self.num_ended = self.num_output_tokens = 0
        self.done = Event()
        self._next_row = 0
        self._greenlets = Group()
        self._slots = BoundedSemaphore(plan.max_concurrency) if plan.max_concurrency is not None else None
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        self._headers["Accept-Encoding"] = "identity"  # a compressed stream would come in blocks
        if plan.api_key_env is not None:
            self._headers["Authorization"] = f"Bearer {os.environ[plan.api_key_env]}"
        self._start_s = time.perf_counter() + _LEAD_S

    def now_s(self) -> float:
        return time.perf_counter() - self._start_s

    def dispatch(self, client: Any) -> None:
        """Issue every request and wait for the ends."""
        try:
            if self.plan.closed_loop is None:
                self._dispatch_open(client)
            else:
                for _ in range(min(self.plan.closed_loop.concurrency, len(self.plan.bodies))):
                    self._greenlets.spawn(self._act_as_user, client)
            self._greenlets.join()
        finally:
            self.done.set()

    def stop(self) -> None:
        """End now: what is open, due or held back stays unfinished."""
        self._greenlets.kill()
        if self.plan.closed_loop is None:
            now_s = self.now_s()
            while self._next_row < len(self.plan.bodies) and self.plan.arrivals_s[self._next_row] < now_s:
                self._write_unsent(self._take_row())
        self.done.set()

    def _take_row(self) -> int:
        self._next_row += 1
        return self._next_row - 1

    def _dispatch_open(self, client: Any) -> None:
        arrivals = self.plan.arrivals_s
        while self._next_row < len(arrivals):
            self._sleep_until(arrivals[self._next_row])
            if self._slots is not None:
                self._slots.acquire()
            row = self._take_row()
            self._greenlets.spawn(self._send_and_release, client, row, arrivals[row])

    def _act_as_user(self, client: Any) -> None:
        closed = self.plan.closed_loop
        assert closed is not None
        ready_s = 0.0
        self._sleep_until(ready_s)
        while self._next_row < len(self.plan.bodies):
            if self._slots is not None:
                self._slots.acquire()
            self._send_and_release(client, self._take_row(), ready_s)
            ready_s = self.now_s() + closed.think_time_s
            self._sleep_until(ready_s)

    def _sleep_until(self, when_s: float) -> None:
        # The hub's timers are relative to a time it read earlier, so one sleep may end too soon.
        while (left_s := when_s - self.now_s()) > 0:
            gevent.sleep(left_s)

    def _send_and_release(self, client: Any, row: int, arrival_s: float) -> None:
        try:
            self._send(client, row, arrival_s)
        finally:
            if self._slots is not None:
                self._slots.release()

    def _send(self, client: Any, row: int, arrival_s: float) -> None:
        reader = EventReader()
        error: str | None = None
        outcome = Outcome.UNFINISHED
        sent_s = self.now_s()
        self.num_sent += 1
        timer = gevent.Timeout.start_new(self.plan.timeout_s)
        try:
            self._receive(client, self.plan.bodies[row], reader)
            outcome = Outcome.COMPLETED
        except gevent.Timeout:
            outcome, error = Outcome.FAILED, f"no whole answer within {self.plan.timeout_s:g} s"
        except Exception as failure:  # whatever it is, it ends this request and not the run
            outcome, error = Outcome.FAILED, _reason(failure)
        finally:
            timer.close()
            if error is not None and reader.times_s:
                error += f" (after {len(reader.times_s)} events)"
            times_s = reader.token_times_s()
            self.num_ended += 1
            self.num_output_tokens += len(times_s)
            self._write(
                RequestResult(
                    row=row,
                    arrival_s=arrival_s,
                    sent_s=sent_s,
                    outcome=outcome,
                    token_times_s=times_s,
                    num_events=reader.num_carriers,
                    error=error,
                    num_prompt_tokens=reader.num_prompt_tokens,
                    num_cached_tokens=reader.num_cached_tokens,
                    is_counted=reader.num_output_tokens is not None,
                )
            )

    def _receive(self, client: Any, body: str, reader: EventReader) -> None:
        answer = client.post(PATH, data=body, headers=self._headers, stream=True, catch_response=True)
        response = answer._response
        if response is None:
            raise getattr(answer.error, "original", None) or answer.error  # the cause, not "retries exceeded"
        if answer.status_code != 200:
            raise BadStream(f"HTTP {answer.status_code}: {_body_message(answer.content or b'')}")
        # Not iter_lines: it waits for 1,024 bytes. And not readline's own separator, which is \r\n.
        while line := response.readline(b"\n"):
            reader.take(line, self.now_s())
        reader.take(response.read(), self.now_s())  # a last line without an end of line
        reader.check_complete()

    def _write_unsent(self, row: int) -> None:
        arrival_s = self.plan.arrivals_s[row]
        self._write(
            RequestResult(
                row=row, arrival_s=arrival_s, sent_s=None, outcome=Outcome.UNFINISHED, token_times_s=(), num_events=0
            )
        )

    def _write(self, result: RequestResult) -> None:
        self.results.write(result.dumps() + "\n")

    def report(self) -> None:
        """Progress now and then."""
        while not self.done.wait(_PROGRESS_S):
            self.write_progress()

    def write_progress(self) -> None:
        progress = LoadProgress(
            elapsed_s=max(self.now_s(), 0.0),
            num_sent=self.num_sent,
            num_ended=self.num_ended,
            num_output_tokens=self.num_output_tokens,
        )
        sys.stdout.write(progress.dumps() + "\n")
        sys.stdout.flush()


class _NoDelayPool(HTTPClientPool):
    """Connections without Nagle's algorithm: the end of a long body must not wait for an acknowledgement."""

    def get_client(self, *args: Any, **kwargs: Any) -> Any:
        client = super().get_client(*args, **kwargs)
        client._connection_pool.after_connect = _set_no_delay  # type: ignore[method-assign,assignment]
        return client


def _set_no_delay(connection: Any) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _reason(failure: Exception) -> str:
    text = str(failure) or "no message"
    return text if isinstance(failure, BadStream) else f"{type(failure).__name__}: {text}"


def _body_message(body: bytes) -> str:
    try:
        return error_message(json.loads(body))
    except ValueError:
        return error_message(body.decode("utf-8", errors="replace") or "no body")


def user_class(load: Load) -> type[Any]:
    """A Locust user that sends the whole load."""
    plan = load.plan
    pool = _NoDelayPool(
        concurrency=min(max(len(plan.bodies), 1), _MAX_CONNECTIONS),
        connection_timeout=min(plan.timeout_s, _CONNECT_S),
        network_timeout=plan.timeout_s + 1.0,  # the timer over the whole answer comes first
    )

    def dispatch(user: Any) -> None:
        load.dispatch(user.client)
        raise StopUser

    return type("Dispatcher", (locust.FastHttpUser,), {"host": plan.url, "client_pool": pool, "tasks": [dispatch]})


def run(plan: LoadPlan, results: TextIO) -> None:
    """Run the plan to its end, its deadline or a signal."""
    load = Load(plan, results)
    environment = Environment(user_classes=[user_class(load)], events=locust.event.Events())
    runner = environment.create_local_runner()
    for greenlet in (load.report, lambda: _stop_with_parent(load.stop)):
        gevent.spawn(greenlet)
    gevent.signal_handler(signal.SIGTERM, load.stop)
    gc.collect()
    gc.freeze()  # the plan lives as long as the process: collections need not look at it
    runner.start(user_count=1, spawn_rate=1)
    load.done.wait(None if plan.deadline_s is None else plan.deadline_s + _LEAD_S)
    if not load.done.is_set():
        load.stop()
    load.write_progress()  # the last one: it says how long was observed
    runner.quit()


def _stop_with_parent(stop: Callable[[], None]) -> None:
    """The parent holds the other end of stdin and never writes: when it closes, nobody waits for the results."""
    wait_read(sys.stdin.fileno())
    stop()


def main() -> None:
    plan_path, results_path = map(Path, sys.argv[1:])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one connection per open request
    with results_path.open("w", encoding="utf-8") as results:
        run(LoadPlan.loads(plan_path.read_text(encoding="utf-8")), results)


if __name__ == "__main__":
    main()
