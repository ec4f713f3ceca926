"""Metrics, disconnects, failures, and the official client."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

Eventually = Callable[[Callable[[], bool]], None]
LONG = {"prompt": [5] * 20, "max_tokens": 480, "temperature": 0, "ignore_eos": True, "stream": True}


def metric(server: Any, name: str) -> float:
    text: str = server.request("GET", "/metrics")[1]
    line = next(line for line in text.splitlines() if line.startswith(f"workbench:{name}{{"))
    return float(line.rpartition(" ")[2])


def test_openai_client_streams_a_completion(server: Any) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        options: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 6, "temperature": 0}
        extra = {"ignore_eos": True}
        whole = client.completions.create(**options, extra_body=extra)
        with client.completions.create(
            **options, stream=True, stream_options={"include_usage": True}, extra_body=extra
        ) as stream:
            events = list(stream)
    assert "".join(event.choices[0].text for event in events[:-1]) == whole.choices[0].text
    assert len(events) == 7
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 6


def test_openai_client_streams_a_chat(server: Any) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        options: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0}
        whole = client.chat.completions.create(**options, extra_body={"ignore_eos": True})
        with client.chat.completions.create(**options, stream=True, extra_body={"ignore_eos": True}) as stream:
            events = list(stream)
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in events) == whole.choices[0].message.content
    assert events[-1].choices[0].finish_reason == "length"


def test_metrics_count_tokens_requests_and_prefix_hits(make_server: Callable[..., Any]) -> None:
    server = make_server(num_blocks=65, block_size=16, max_model_len=256)
    for _ in range(2):
        server.post({"prompt": [7] * 40, "max_tokens": 5, "ignore_eos": True})
    assert metric(server, "prompt_tokens_total") == 80
    assert metric(server, "generation_tokens_total") == 10
    assert metric(server, "prefix_cache_queries_total") == 80
    assert metric(server, "prefix_cache_hits_total") == 32
    assert metric(server, "num_preemptions_total") == 0
    assert metric(server, "num_requests_running") == 0
    assert metric(server, "kv_cache_usage_perc") == 0
    for name in ("time_to_first_token", "request_time_per_output_token", "e2e_request_latency"):
        assert metric(server, f"{name}_seconds_count") == 2


def test_metrics_count_preemptions_of_a_full_pool(make_server: Callable[..., Any]) -> None:
    server = make_server(num_blocks=9, block_size=16, max_model_len=128)
    ask = {"max_tokens": 90, "ignore_eos": True, "temperature": 0}
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda i: server.post({"prompt": [i] * 30, **ask}), range(3)))
    assert [body["usage"]["completion_tokens"] for _, body in answers] == [90, 90, 90]
    assert metric(server, "num_preemptions_total") > 0


def test_client_disconnect_aborts_the_request(server: Any, eventually: Eventually) -> None:
    before = server.llm.num_generation_tokens
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps(LONG), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    answer.close()
    connection.close()
    eventually(lambda: server.llm.num_open == 0 and not server.llm.core.scheduler.has_requests())
    assert server.llm.num_generation_tokens - before < 480
    assert server.llm.core.scheduler.blocks.pool.num_in_use == 0


def test_concurrent_streams_get_what_each_gets_alone(server: Any) -> None:
    asks = [{"prompt": [i + 1] * (i + 3), "max_tokens": 20, "temperature": 0, "ignore_eos": True} for i in range(8)]
    alone = [server.events(ask) for ask in asks]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(server.events, asks))
    texts = [[[event["choices"][0]["text"] for event in events[:-1]] for events in side] for side in (alone, together)]
    assert texts[0] == texts[1]


def test_engine_failure_is_reported_to_open_and_later_requests(
    make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(num_blocks=65, max_model_len=512)
    assert server.request("GET", "/health")[0] == 200
    execute, first_token = server.llm.core.executor.execute, threading.Event()

    def break_later(plan: Any) -> Any:
        if first_token.is_set():
            raise MemoryError("no more")
        return execute(plan)

    monkeypatch.setattr(server.llm.core.executor, "execute", break_later)
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps(LONG), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    with caplog.at_level(logging.CRITICAL):
        first_token.set()
        rest = answer.read().decode()
    connection.close()
    last = json.loads(rest.strip().rpartition("data: ")[2])
    assert "the engine stopped after MemoryError: no more" in last["error"]["message"]
    status, body = server.request("GET", "/health")
    assert status == 503
    assert "MemoryError" in body["error"]["message"]
    assert server.post({"prompt": "x"})[0] == 503
