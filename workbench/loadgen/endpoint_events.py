"""Reads the event stream of a completion line by line and finds out when which tokens came. No network here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class BadStream(Exception):
    """The server sent something that is no completion stream, or an error in the middle of one."""


_MOST_TOKENS = 10_000_000
"""No window is as long: a larger count is nonsense, and is taken for none."""


class EventReader:
    """Takes the lines of one answer in order."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        """Of the events with a choice."""
        self.num_prompt_tokens: int | None = None
        self.num_output_tokens: int | None = None
        self.num_cached_tokens: int | None = None
        self._has_text: list[bool] = []
        self._is_done = False
        self._finish_reason: str | None = None

    def take(self, line: bytes, now_s: float) -> None:
        """One line that arrived at `now_s`. Raises `BadStream`."""
        line = line.strip()
        if not line.startswith(b"data:"):
            if line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise BadStream(f"not an event stream: {shown(line)}")
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self._is_done = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise BadStream(f"an event that is no JSON: {shown(data)}") from None
        if not isinstance(event, dict):
            raise BadStream(f"an event that is no object: {shown(data)}")
        if event.get("error"):
            raise BadStream(f"the server reports: {error_message(event)}")
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._take_usage(usage)
        choices = event.get("choices")
        if choices:
            self._take_choice(choices[0], now_s)

    def check_complete(self) -> None:
        """Raise `BadStream` if the stream ended before the answer did."""
        if not self._is_done and self._finish_reason is None:
            raise BadStream(f"the stream ended early, after {len(self.times_s)} events and without a finish reason")
        if not self.times_s:
            raise BadStream("the stream ended without a single token")

    def token_times_s(self) -> list[float]:
        """When each token came, and thereby how many: as the server counts, else one per event."""
        return spread_tokens(self._carriers(), self.num_output_tokens)

    @property
    def num_carriers(self) -> int:
        """Events that brought tokens."""
        return len(self._carriers())

    def _take_choice(self, choice: Any, now_s: float) -> None:
        if not isinstance(choice, dict):
            raise BadStream(f"a choice that is no object: {shown(str(choice).encode())}")
        text = choice.get("text")
        if text is None:
            text = (choice.get("delta") or {}).get("content")
        self.times_s.append(now_s)
        self._has_text.append(bool(text))
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _take_usage(self, usage: dict[str, Any]) -> None:
        self.num_prompt_tokens = _count(usage, "prompt_tokens")
        self.num_output_tokens = _count(usage, "completion_tokens")
        details = usage.get("prompt_tokens_details")
        self.num_cached_tokens = _count(details, "cached_tokens") if isinstance(details, dict) else None

    def _carriers(self) -> list[float]:
        """Times of the events that carried tokens.

        A token may have no text (part of a character), and some servers close with an event that has neither text
        nor token. So empty events count as tokens, unless there are more events than tokens.
        """
        count = self.num_output_tokens
        if count is None:
            has_empty_end = len(self.times_s) > 1 and not self._has_text[-1] and self._finish_reason is not None
            return self.times_s[:-1] if has_empty_end else self.times_s
        if len(self.times_s) <= count:
            return self.times_s
        with_text = [time for time, has_text in zip(self.times_s, self._has_text, strict=True) if has_text]
        return with_text if len(with_text) == count else self.times_s[:count]


def spread_tokens(times_s: Sequence[float], num_tokens: int | None) -> list[float]:
    """One time per token for tokens that came in fewer events, each of which brought about as many as the others."""
    num_events = len(times_s)
    if num_tokens is None or num_tokens == num_events or num_events == 0:
        return list(times_s)
    return [times_s[token * num_events // num_tokens] for token in range(num_tokens)]


def error_message(body: Any) -> str:
    """The message in an error object as OpenAI, vLLM and others write it; else the body itself, shortened."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return shown(str(message).encode(), limit=300)


def shown(data: bytes, limit: int = 100) -> str:
    """Bytes as one line of a message."""
    text = " ".join(data.decode("utf-8", errors="replace").split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _count(values: dict[str, Any], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and 0 <= value <= _MOST_TOKENS else None
