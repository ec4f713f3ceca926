"""Formats with the text of prompts: ShareGPT, OpenAI batch input, vLLM custom, request files; and mapped JSON.

Messages of a chat are written one after another as `role`, line end, content, line end; ShareGPT conversations as their
bare texts. No chat template is applied: templates differ per model by a few tokens a message.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any

from workbench.workload.traces.formats import TIME_KEYS, MappedJson
from workbench.workload.traces.hash_readers import not_an_object
from workbench.workload.traces.json_values import nested
from workbench.workload.traces.request_rows import (
    DEFAULT_OUTPUT_TOKENS,
    Encoder,
    RequestRows,
    as_time_s,
    as_tokens,
)
from workbench.workload.traces.status import is_failure, names_failure
from workbench.workload.traces.table import Ledger, TraceTable
from workbench.workload.traces.units import UNIT_NAMES, UNIT_SECONDS

_ANSWERERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_INPUT_KEYS = ("input_tokens", "num_prefill_tokens", "prompt_tokens", "num_prompt_tokens", "input_length")
_OUTPUT_KEYS = (
    "output_tokens", "num_decode_tokens", "output_len", "completion_tokens", "output_length", "num_output_tokens",
)  # fmt: skip
_LIMIT_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MISSING = object()


def read_sharegpt(values: Iterable[tuple[int, Any]], ledger: Ledger, encoder: Encoder) -> TraceTable:
    """Every answer is a request: its prompt is the conversation before it, its output length is the answer's."""
    rows = RequestRows()
    num_messages = 0
    for number, (line, value) in enumerate(values):
        ledger.num_read += 1
        messages = _messages(value)
        if isinstance(messages, str):
            ledger.add(messages, "dropped", [line])
            continue
        num_messages += len(messages)
        if _add_conversation(rows, line, number, messages, encoder) == 0:
            ledger.add("conversation without a question and its answer", "dropped", [line])
        elif messages[-1][0] not in _ANSWERERS:
            ledger.add("last message has no answer", "left out", [line])
    ledger.note(f"{num_messages} messages in {ledger.num_read} conversations give {len(rows.times)} requests")
    return rows.table(has_times=False, tokenizer=encoder.name, rows_are="conversations")


def _messages(value: Any) -> list[tuple[str, str]] | str:
    """(speaker, text) of each message, or what is wrong."""
    if not isinstance(value, dict):
        return not_an_object(value)
    messages = value.get("conversations", value.get("conversation"))
    if not isinstance(messages, list):
        return "conversations is not a list"
    found = []
    for message in messages:
        speaker = message.get("from", message.get("role")) if isinstance(message, dict) else None
        text = message.get("value", message.get("content")) if isinstance(message, dict) else None
        if not isinstance(speaker, str) or not isinstance(text, str):
            return "a message has no speaker or no text"
        found.append((speaker, text))
    return found


def _add_conversation(
    rows: RequestRows, line: int, number: int, messages: list[tuple[str, str]], encoder: Encoder
) -> int:
    """Number of requests."""
    start, turn, was_asked = len(rows.token_ids), 0, False
    for speaker, text in messages:
        before = len(rows.token_ids)
        rows.token_ids.extend(encoder.encode(text))
        if speaker not in _ANSWERERS:
            was_asked = was_asked or speaker != "system"
        elif was_asked:
            rows.add(
                line, 0.0, before - start, len(rows.token_ids) - before, session=number, turn=turn, span=(start, before)
            )
            turn += 1
    return turn


def read_openai_batch(values: Iterable[tuple[int, Any]], ledger: Ledger, encoder: Encoder) -> TraceTable:
    """The output length is the limit the request states."""
    rows = RequestRows()
    for line, value in values:
        ledger.num_read += 1
        body = value.get("body") if isinstance(value, dict) else None
        if not isinstance(value, dict):
            ledger.add(not_an_object(value), "dropped", [line])
        elif not isinstance(body, dict):
            ledger.add("body is not an object", "dropped", [line])
        elif "embeddings" in str(value.get("url")):
            ledger.add("generates no text", "dropped", [line])
        else:
            _add_request(rows, line, body, 0.0, ledger, encoder)
    return rows.table(has_times=False, tokenizer=encoder.name)


def read_prompts(
    values: Iterable[tuple[int, Any]], ledger: Ledger, encoder: Encoder, time_unit: str = "s"
) -> TraceTable:
    """One object per request: text (`prompt`, `messages`), ids (`prompt_token_ids`) or a length; an output length or
    limit; a time or none."""
    rows = RequestRows()
    sessions: dict[Any, int] = {}
    has_text = has_times = False
    for line, value in values:
        ledger.num_read += 1
        if not isinstance(value, dict):
            ledger.add(not_an_object(value), "dropped", [line])
            continue
        arrival_s, stated = 0.0, _first(value, TIME_KEYS)
        if stated is not _MISSING:
            parsed = as_time_s(stated, UNIT_SECONDS[time_unit])
            if parsed is None:
                ledger.add(f"arrival is not a time in {UNIT_NAMES[time_unit]}", "dropped", [line])
                continue
            arrival_s, has_times = parsed, True
        elif has_times:
            ledger.add("arrival is missing", "dropped", [line])
            continue
        key = value.get("session_id", value.get("conversation_id"))
        session = sessions.setdefault(str(key), len(sessions)) if key is not None else -1
        has_text |= _add_request(rows, line, value, arrival_s, ledger, encoder, session)
    return rows.table(has_times=has_times, tokenizer=encoder.name if has_text else None)


def _add_request(
    rows: RequestRows,
    line: int,
    body: dict[str, Any],
    arrival_s: float,
    ledger: Ledger,
    encoder: Encoder,
    session: int = -1,
) -> bool:
    """True where the request came with text or ids."""
    start = len(rows.token_ids)
    ids = _prompt_ids(body, encoder)
    if isinstance(ids, str):
        ledger.add(ids, "dropped", [line])
        return False
    inputs = as_tokens(_first(body, _INPUT_KEYS)) if ids is None else len(ids)
    if inputs is None:
        ledger.add("has neither a prompt nor its number of tokens", "dropped", [line])
        return False
    stated = _first(body, (*_OUTPUT_KEYS, *_LIMIT_KEYS))
    outputs = as_tokens(stated)
    if stated is _MISSING or stated is None:
        ledger.add(f"states no output length: {DEFAULT_OUTPUT_TOKENS} tokens assumed", "kept", [line])
        outputs = DEFAULT_OUTPUT_TOKENS
    elif outputs is None:
        ledger.add("output length is not a number of tokens", "dropped", [line])
        return False
    rows.token_ids.extend(ids or [])
    failed = names_failure(body)
    span = (start, len(rows.token_ids))
    rows.add(line, arrival_s, inputs, outputs, session=session, failed=failed, span=span)
    return ids is not None


def _prompt_ids(body: dict[str, Any], encoder: Encoder) -> list[int] | array[int] | str | None:
    """Token ids, None where the request has no text, or what is wrong."""
    ids = body.get("prompt_token_ids")
    prompt = body.get("prompt", body.get("input"))
    if isinstance(prompt, list) and prompt and type(prompt[0]) is int:
        ids = prompt
    if ids is not None:
        is_list = isinstance(ids, list) and all(type(item) is int and 0 <= item < 2**31 for item in ids)
        return list(ids) if is_list else "prompt is not a list of token ids"
    if isinstance(body.get("messages"), list):
        text = _chat_text(body["messages"], body.get("tools"))
    elif isinstance(prompt, list):
        text = _chat_text(prompt, body.get("tools"))
    elif isinstance(prompt, str):
        text = prompt
    else:
        return "prompt is not a text" if prompt is not None or "messages" in body else None
    return list(encoder.encode(text)) if text is not None else "a message has no role or no content"


def _chat_text(messages: list[Any], tools: Any) -> str | None:
    parts = [json.dumps(tools) + "\n"] if tools else []
    for message in messages:
        if isinstance(message, str):
            parts.append(message)
            continue
        if not isinstance(message, dict):
            return None
        content = message.get("content")
        if isinstance(content, list):
            texts = (part.get("text") for part in content if isinstance(part, dict))
            content = "".join(text for text in texts if isinstance(text, str))
        if content is not None and not isinstance(content, str):
            return None
        calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
        parts.append(f"{message.get('role', '')}\n{content or ''}{calls}\n")
    return "".join(parts)


def read_mapped(values: Iterable[tuple[int, Any]], ledger: Ledger, known: MappedJson) -> TraceTable:
    """JSON rows whose keys the user names."""
    columns = known.columns
    rows = RequestRows()
    sessions: dict[str, int] = {}
    unit_s = UNIT_SECONDS.get(known.time_unit)
    for line, value in values:
        ledger.num_read += 1
        if not isinstance(value, dict):
            ledger.add(not_an_object(value), "dropped", [line])
            continue
        arrival_s = 0.0 if columns.arrival is None else as_time_s(nested(value, columns.arrival), unit_s)
        inputs, outputs = (as_tokens(nested(value, key)) for key in (columns.input_tokens, columns.output_tokens))
        if arrival_s is None:
            ledger.add(f"{columns.arrival} is not a time", "dropped", [line])
        elif inputs is None or outputs is None:
            key = columns.input_tokens if inputs is None else columns.output_tokens
            ledger.add(f"{key} is not a number of tokens", "dropped", [line])
        else:
            state = nested(value, columns.status) if columns.status else None
            name = nested(value, columns.session) if columns.session else None
            session = -1 if name is None else sessions.setdefault(str(name), len(sessions))
            failed = columns.status is not None and is_failure(columns.status, state)
            rows.add(line, arrival_s, inputs, outputs, session=session, failed=failed)
    return rows.table(has_times=columns.arrival is not None)


def _first(body: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((body[key] for key in keys if key in body), _MISSING)
