"""When did which token come: event streams of several servers, line by line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workbench.loadgen.endpoint_events import BadStream, EventReader, spread_tokens


def read(*events: Any) -> EventReader:
    """Events 1 second apart, from 1 s."""
    reader = EventReader()
    for number, event in enumerate(events, start=1):
        line = event if isinstance(event, bytes) else f"data: {json.dumps(event)}\n".encode()
        reader.take(line, float(number))
        reader.take(b"\n", float(number))
    return reader


def token(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": reason}]}


def usage(count: int) -> dict[str, Any]:
    details = {"cached_tokens": 16}
    return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": count, "prompt_tokens_details": details}}


DONE = b"data: [DONE]\n"


def test_one_event_per_token_with_usage() -> None:
    reader = read(token("a"), token(""), token("b", "length"), usage(3), DONE)
    reader.check_complete()
    assert reader.token_times_s() == [1.0, 2.0, 3.0]
    assert (reader.num_carriers, reader.num_prompt_tokens, reader.num_cached_tokens) == (3, 9, 16)


def test_chat_events_count_alike() -> None:
    events = [{"choices": [{"delta": {"content": text}, "finish_reason": None}]} for text in "ab"]
    assert read(*events, usage(2), DONE).token_times_s() == [1.0, 2.0]


def test_packed_events_repeat_their_time() -> None:
    reader = read(token("abc"), token("def", "length"), usage(6), DONE)
    assert reader.token_times_s() == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    assert reader.num_carriers == 2


@pytest.mark.parametrize("closing", [[usage(2)], []], ids=["usage", "no usage"])
def test_empty_closing_event_is_no_token(closing: list[Any]) -> None:
    reader = read(token("a"), token("b"), token("", "stop"), *closing, DONE)
    reader.check_complete()
    assert reader.token_times_s() == [1.0, 2.0]


def test_comments_and_other_fields_are_skipped() -> None:
    reader = read(b": ping\n", b"event: message\n", b"id: 4\n", token("a", "length"))
    reader.check_complete()
    assert reader.token_times_s() == [4.0]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b"<html>busy</html>\n", "not an event stream: <html>busy</html>"),
        (b'data: {"choices": [\n', "no JSON"),
        (b"data: 17\n", "no object"),
        ({"choices": [3]}, "a choice that is no object"),
        ({"error": {"message": "out of blocks"}}, "the server reports: out of blocks"),
    ],
)
def test_garbage_is_a_bad_stream_with_its_text(event: Any, message: str) -> None:
    with pytest.raises(BadStream, match=message):
        read(token("a"), event)


def test_stream_without_an_end_is_incomplete() -> None:
    with pytest.raises(BadStream, match="ended early, after 2 events"):
        read(token("a"), token("b")).check_complete()


def test_stream_without_tokens_is_incomplete() -> None:
    with pytest.raises(BadStream, match="without a single token"):
        read(DONE).check_complete()


@pytest.mark.parametrize("num_tokens", [4, 5, 7, 100])
def test_spread_tokens_gives_every_event_its_share(num_tokens: int) -> None:
    times = spread_tokens([1.0, 2.0, 3.0, 4.0], num_tokens)
    assert len(times) == num_tokens
    assert times == sorted(times)
    shares = [times.count(event) for event in (1.0, 2.0, 3.0, 4.0)]
    assert max(shares) - min(shares) <= 1


def test_count_that_no_window_holds_is_taken_for_none() -> None:
    reader = read(token("a"), token("b", "length"), usage(10**12), DONE)
    assert reader.num_output_tokens is None
    assert reader.token_times_s() == [1.0, 2.0]
