"""POST /v1/completions and its companions, over a real socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import RequestRefused

GREEDY = {"temperature": 0, "ignore_eos": True}


def test_completion_text_prompt_gives_usage_and_length(server: Any) -> None:
    status, body = server.post({"model": "tiny", "prompt": "Hello", "max_tokens": 7, **GREEDY})
    assert status == 200
    assert body["object"] == "text_completion"
    assert body["choices"][0]["finish_reason"] == "length"
    assert {name: body["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "total_tokens": 12,
    }


def test_completion_without_max_tokens_gives_16(server: Any) -> None:
    assert server.post({"prompt": [1, 2, 3], **GREEDY})[1]["usage"]["completion_tokens"] == 16


def test_completion_token_ids_and_their_text_give_the_same_answer(server: Any) -> None:
    answers = [
        server.post({"prompt": prompt, "max_tokens": 8, **GREEDY})[1]["choices"][0]["text"]
        for prompt in ("Hello", list(b"Hello"))
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("prompt", [["Hello", "there", "you"], [[1], [2, 3], [4]], ["Hello", [2, 3], "x"]])
def test_completion_several_prompts_times_n_gives_numbered_choices(server: Any, prompt: list[Any]) -> None:
    _, body = server.post({"prompt": prompt, "n": 2, "max_tokens": 3, "ignore_eos": True})
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert body["usage"]["completion_tokens"] == 18


def test_completion_seeded_sampling_repeats(server: Any) -> None:
    ask = {"prompt": "abc", "max_tokens": 12, "temperature": 1.5, "seed": 11, "top_p": 0.9, "top_k": -1}
    texts = {server.post(ask)[1]["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1


def test_completion_over_the_window_is_clamped(server: Any) -> None:
    _, body = server.post({"prompt": [1] * 500, "max_tokens": 100_000, **GREEDY})
    assert body["usage"]["completion_tokens"] == 12
    assert body["choices"][0]["finish_reason"] == "length"


def test_completion_stop_token_ends_it(server: Any) -> None:
    _, body = server.post({"prompt": "Hello", "max_tokens": 50, "stop_token_ids": list(range(512)), "temperature": 0})
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 1


def test_stream_has_one_event_per_token_then_usage_then_done(server: Any) -> None:
    whole = server.post({"prompt": "Hello", "max_tokens": 9, **GREEDY})[1]["choices"][0]["text"]
    events = server.events({"prompt": "Hello", "max_tokens": 9, "stream_options": {"include_usage": True}, **GREEDY})
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 9
    tokens = [event["choices"][0] for event in events[:-2]]
    assert [token["finish_reason"] for token in tokens] == [None] * 8 + ["length"]
    assert "".join(token["text"] for token in tokens) == whole


def test_stream_without_usage_asked_has_none(server: Any) -> None:
    events = server.events({"prompt": "Hello", "max_tokens": 3, **GREEDY})
    assert len(events) == 4
    assert all("usage" not in event for event in events[:-1])


def test_chat_without_template_gives_an_assistant_message(server: Any) -> None:
    ask = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 4, **GREEDY}
    _, body = server.post(ask, "/v1/chat/completions")
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["usage"]["prompt_tokens"] == len("user: Hi\nassistant:")


def test_models_names_the_window_and_the_engine(server: Any) -> None:
    card = server.request("GET", "/v1/models")[1]["data"][0]
    assert (card["id"], card["max_model_len"], card["engine"]["num_blocks"]) == ("tiny", 512, 129)


REFUSALS: dict[str, tuple[Any, int, str]] = {
    "malformed": (b'{"prompt": "x"', 400, "not valid JSON"),
    "no object": (b"[1]", 400, "body: input should be an object"),
    "no prompt": ({}, 400, "prompt: field required"),
    "empty prompt": ({"prompt": ""}, 400, "has 0 tokens"),
    "empty list": ({"prompt": []}, 400, "must not be empty"),
    "wrong type": ({"prompt": {"a": 1}}, 400, "prompt: "),
    "token too large": ({"prompt": [512]}, 400, "under 512, the vocabulary (got 512)"),
    "token too large for any": ({"prompt": [2**40]}, 400, "under 512, the vocabulary (got 1099511627776)"),
    "token negative": ({"prompt": [3, -1]}, 400, "token ids (whole numbers from 0), or a list of texts"),
    "token negative is shown": ({"prompt": [3, -1]}, 400, "(got -1)"),
    "token no whole number": ({"prompt": [1.5]}, 400, "(got 1.5)"),
    "token of a later prompt": ({"prompt": [[1], [2, "a"]]}, 400, "(got 'a')"),
    "one wrong token of many": ({"prompt": [1] * 9999 + [None]}, 400, "(got None)"),
    "too long": ({"prompt": [1] * 512}, 400, "has 512 tokens, but must have 1 to 511: max_model_len is 512"),
    "other model": ({"model": "gpt", "prompt": "x"}, 404, "The model served is 'tiny'"),
    "max_tokens": ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens: must be at least 1 (got 0)"),
    "temperature": ({"prompt": "x", "temperature": -1}, 400, "temperature: must be at least 0"),
    "top_p": ({"prompt": "x", "top_p": 0}, 400, "top_p: must be over 0"),
    "top_k": ({"prompt": "x", "top_k": -2}, 400, "top_k: must be at least 0"),
    "n": ({"prompt": "x", "n": 0}, 400, "n: must be at least 1"),
    "echo": ({"prompt": "x", "echo": True}, 400, "echo: is not served"),
    "logprobs": ({"prompt": "x", "logprobs": 2}, 400, "logprobs: is not served"),
    "stop": ({"prompt": "x", "stop": ["a"]}, 400, "Use stop_token_ids"),
}


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("stream", [False, True])
def test_refusal_is_an_error_object_with_the_reason(server: Any, case: str, stream: bool) -> None:
    body, expected_status, message = REFUSALS[case]
    if isinstance(body, dict):
        body = {**body, "stream": stream}
    status, answer = server.post(body)
    assert status == expected_status
    assert message in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_neutral_values_of_what_is_not_served_pass(server: Any) -> None:
    neutral = {"echo": False, "logprobs": None, "stop": None, "presence_penalty": 0.0, "best_of": 1, "user": "me"}
    assert server.post({"prompt": "x", "max_tokens": 1, **neutral})[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_request_refused_by_the_engine_is_a_400(server: Any, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    core = server.llm.core

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def add_request(self, request: Any) -> None:
            raise RequestRefused(f"request {request.request_id!r}: needs 13 blocks, but the pool has 8")

    monkeypatch.setattr(server.llm, "core", Refusing())
    status, answer = server.post({"prompt": "x", "stream": stream})
    assert status == 400
    assert answer["error"]["message"] == "needs 13 blocks, but the pool has 8"


def test_async_scheduling_gives_the_same_answers(server: Any, make_server: Callable[..., Any]) -> None:
    overlapping = make_server(num_blocks=129, max_model_len=512, async_scheduling=True)
    ask = {"prompt": ["Hello", "there"], "max_tokens": 30, **GREEDY}
    assert overlapping.post(ask)[1]["choices"] == server.post(ask)[1]["choices"]


def test_unknown_path_is_an_error_object(server: Any) -> None:
    status, answer = server.request("GET", "/v1/nothing")
    assert status == 404
    assert answer["error"]["message"] == "GET /v1/nothing: Not Found"


def test_completion_with_more_answers_than_are_served_at_once_is_refused(server: Any) -> None:
    status, body = server.post({"prompt": [1], "n": 1_000_000})
    assert status == 400
    assert body["error"]["param"] == "n"
    assert "at most 128" in body["error"]["message"]
