"""How answers are written: completions and chats, whole or as events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["completion", "chat"]
DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(ensure_ascii=True).encode
_compact = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a request."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One finished sequence."""

    text: str
    finish_reason: str | None


class Format:
    """Writes the answer to one request."""

    def __init__(self, kind: Kind, *, response_id: str, created: int, model: str) -> None:
        self._is_chat = kind == "chat"
        name = "chat.completion" if self._is_chat else "text_completion"
        self._head = {"id": response_id, "object": name, "created": created, "model": model}
        event_head = {**self._head, "object": "chat.completion.chunk" if self._is_chat else name}
        # An event is written for every token, so all that does not change is made once.
        self._event_head = f"data: {_compact(event_head)[:-1]}"

    def event(self, choice: int, text: str, finish_reason: str | None, *, is_first: bool) -> str:
        """One token. A chat's first event of each choice names the role."""
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        if self._is_chat:
            role = '"role":"assistant",' if is_first else ""
            content = f'"delta":{{{role}"content":{_encode(text)}}}'
        else:
            content = f'"text":{_encode(text)}'
        return (
            f'{self._event_head},"choices":[{{"index":{choice},{content},"logprobs":null,'
            f'"finish_reason":{reason}}}]}}\n\n'
        )

    def usage_event(self, usage: Usage) -> str:
        """The last event before `[DONE]`, if usage was asked for."""
        return f'{self._event_head},"choices":[],"usage":{_compact(usage.to_dict())}}}\n\n'

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer in one object."""
        listed = [
            {
                "index": index,
                **(
                    {"message": {"role": "assistant", "content": choice.text}}
                    if self._is_chat
                    else {"text": choice.text}
                ),
                "logprobs": None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        return {**self._head, "choices": listed, "usage": usage.to_dict()}
