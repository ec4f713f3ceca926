"""A server in a thread of the test process, on a free port."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from engine.async_llm import AsyncLLM
from engine.build import build_engine
from engine.config import EngineConfig
from engine.models.tokenizer import load_tokenizer
from engine.server.app import create_app
from engine.server.run import Server, bind, url_of

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Running:
    """A server and how to talk to it."""

    url: str
    port: int
    llm: AsyncLLM

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body: JSON where it is JSON."""
        connection = self.connect()
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            is_json = (answer.getheader("content-type") or "").startswith("application/json")
            return answer.status, json.loads(text) if is_json else text.decode()
        finally:
            connection.close()

    def post(self, body: Any, path: str = "/v1/completions") -> tuple[int, Any]:
        return self.request("POST", path, body)

    def events(self, body: Any, path: str = "/v1/completions") -> list[Any]:
        """Events of a stream, `[DONE]` included."""
        status, text = self.post({**body, "stream": True}, path)
        assert status == 200, text
        data = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
        return [each if each == "[DONE]" else json.loads(each) for each in data]


@contextmanager
def running(**options: Any) -> Iterator[Running]:
    core, resolved = build_engine(EngineConfig.from_dict({"model": "tiny", "threads": 1, **options}))
    llm = AsyncLLM(core)
    listener: socket.socket = bind("127.0.0.1", 0)
    app = create_app(llm, resolved, load_tokenizer("tiny"), "tiny")
    ready = threading.Event()
    settings = uvicorn.Config(app, log_config=None, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = Server(settings, llm, ready.set)
    url, port = url_of(listener), listener.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert ready.wait(DEADLINE_S)
        yield Running(url=url, port=port, llm=llm)
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(num_blocks=129, max_model_len=512) as found:
        yield found


@pytest.fixture
def make_server() -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(running(**options))


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits until a condition holds."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.005)

    return wait
