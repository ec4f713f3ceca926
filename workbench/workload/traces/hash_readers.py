"""Formats whose prompts are lists of block hashes: Mooncake traces and recorded agentic sessions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workbench.workload.traces.formats import MOONCAKE_KEYS
from workbench.workload.traces.json_values import NotJson
from workbench.workload.traces.request_rows import RequestRows, as_time_s, as_tokens
from workbench.workload.traces.table import Ledger, TraceTable
from workbench.workload.traces.units import UNIT_NAMES, UNIT_SECONDS

MOONCAKE_BLOCK_TOKENS = 512
_ODD_IDS = "number of hash_ids does not fit the input length"
_MAX_ID = 2**62


def read_mooncake(values: Iterable[tuple[int, Any]], ledger: Ledger, time_unit: str = "ms") -> TraceTable:
    """timestamp, input_length, output_length, hash_ids of 512-token blocks (the last one partial)."""
    rows = RequestRows()
    time_key, input_key, output_key = MOONCAKE_KEYS
    for line, value in values:
        ledger.num_read += 1
        if not isinstance(value, dict):
            ledger.add(not_an_object(value), "dropped", [line])
            continue
        arrival_s = as_time_s(value.get(time_key), UNIT_SECONDS[time_unit])
        inputs, outputs = as_tokens(value.get(input_key)), as_tokens(value.get(output_key))
        ids = _hash_ids(value)
        if arrival_s is None:
            ledger.add(f"{time_key} is not a number of {UNIT_NAMES[time_unit]}", "dropped", [line])
        elif inputs is None or outputs is None:
            ledger.add(f"{input_key if inputs is None else output_key} is not a number of tokens", "dropped", [line])
        elif ids is None:
            ledger.add("hash_ids is not a list of whole numbers", "dropped", [line])
        else:
            if ids and len(ids) != -(-inputs // MOONCAKE_BLOCK_TOKENS):
                ledger.add(_ODD_IDS, "kept", [line])
            rows.add(line, arrival_s, inputs, outputs, hash_ids=ids)
    return rows.table(block_tokens=MOONCAKE_BLOCK_TOKENS)


def read_agentic(values: Iterable[tuple[int, Any]], ledger: Ledger) -> TraceTable:
    """One session (or several) with its requests and those of its sub-agents; every leaf request is a row.

    Hash ids stand for whole blocks of `block_size` tokens; they are the session's own where `hash_id_scope` is local.
    """
    reader = _AgenticReader(ledger)
    for line, value in values:
        if isinstance(value, dict) and isinstance(value.get("requests"), list):
            reader.read_session(line, value)
        else:
            ledger.num_read += 1
            kind = "session without a list of requests" if isinstance(value, dict) else not_an_object(value)
            ledger.add(kind, "dropped", [line])
    return reader.rows.table(block_tokens=reader.block_tokens or 64)


class _AgenticReader:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.rows = RequestRows()
        self.block_tokens: int | None = None
        self._session = -1
        self._turn = 0
        self._first_free_id = 0
        self._id_offset = 0

    def read_session(self, line: int, session: dict[str, Any]) -> None:
        self._session += 1
        self._turn = 0
        self._id_offset = 0 if session.get("hash_id_scope") == "global" else self._first_free_id
        self._block_size = as_tokens(session.get("block_size")) or 64
        self.block_tokens = self.block_tokens or self._block_size
        self._read_requests(line, session["requests"], 0.0)

    def _read_requests(self, line: int, requests: list[Any], start_s: float, depth: int = 0) -> None:
        for request in requests:
            if isinstance(request, dict) and isinstance(request.get("requests"), list) and depth < 50:
                offset_s = as_time_s(request.get("t"))
                if offset_s is None:
                    self.ledger.add("sub-agent without a time starts with its session", "kept", [line])
                self._read_requests(line, request["requests"], start_s + (offset_s or 0.0), depth + 1)
            else:
                self._read_request(line, request, start_s)

    def _read_request(self, line: int, request: Any, start_s: float) -> None:
        ledger = self.ledger
        ledger.num_read += 1
        if not isinstance(request, dict):
            ledger.add(not_an_object(request), "dropped", [line])
            return
        arrival_s = as_time_s(request.get("t"))
        inputs, outputs, ids = as_tokens(request.get("in")), as_tokens(request.get("out")), _hash_ids(request)
        if arrival_s is None:
            ledger.add("t is not a number of seconds", "dropped", [line])
        elif inputs is None or outputs is None:
            ledger.add(f"{'in' if inputs is None else 'out'} is not a number of tokens", "dropped", [line])
        elif ids is None:
            ledger.add("hash_ids is not a list of whole numbers", "dropped", [line])
        else:
            if self._block_size != self.block_tokens:
                ledger.add(f"hash_ids of another block_size than {self.block_tokens}", "left out", [line])
                ids = []
            elif ids and len(ids) not in (inputs // self._block_size, -(-inputs // self._block_size)):
                ledger.add(_ODD_IDS, "kept", [line])
            own = [item + self._id_offset for item in ids]
            self._first_free_id = max(self._first_free_id, max(own, default=-1) + 1)
            self.rows.add(
                line, start_s + arrival_s, inputs, outputs, hash_ids=own, session=self._session, turn=self._turn
            )
            self._turn += 1


def not_an_object(value: Any) -> str:
    """What is wrong with a row that is no JSON object."""
    return value.reason if isinstance(value, NotJson) else "not a JSON object"


def _hash_ids(row: dict[str, Any]) -> list[int] | None:
    ids = row.get("hash_ids") or []
    is_list = isinstance(ids, list) and all(type(item) is int and 0 <= item < _MAX_ID for item in ids)
    return ids if is_list else None
