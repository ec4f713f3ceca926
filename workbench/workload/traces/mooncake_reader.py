"""Mooncake traces: JSON lines with hash ids."""

from __future__ import annotations

import json
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.scenario.errors import ScenarioError
from workbench.workload.traces.formats import MOONCAKE_KEYS, Mooncake, open_trace
from workbench.workload.traces.table import Ledger, TraceTable

_MAX_TOKENS = 2**31 - 1


def read_mooncake_trace(path: Path, known: Mooncake, ledger: Ledger) -> TraceTable:
    """All usable rows; unusable ones are entered in the ledger."""
    times, inputs, outputs = array("d"), array("q"), array("q")
    lines, ids, offsets = array("q"), array("q"), array("q", [0])
    try:
        with open_trace(path) as stream:
            for line, raw in enumerate(stream, 1):
                if not raw.strip():
                    continue
                ledger.num_read += 1
                row = _parse(raw)
                if isinstance(row, str):
                    ledger.add(row, "dropped", [line])
                    continue
                if row.hash_ids and len(row.hash_ids) != -(-row.input_tokens // known.block_tokens):
                    ledger.add("number of hash_ids does not fit input_length", "kept", [line])
                times.append(row.arrival_ms * 1e-3)
                inputs.append(row.input_tokens)
                outputs.append(row.output_tokens)
                ids.extend(row.hash_ids)
                offsets.append(len(ids))
                lines.append(line)
    except (OSError, EOFError, zlib.error) as error:
        raise ScenarioError(f"{path}: cannot be read to its end ({error})") from None
    return TraceTable(
        arrival_s=np.array(times, dtype=np.float64),
        input_tokens=np.array(inputs, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
        lines=np.array(lines, dtype=np.int64),
        block_tokens=known.block_tokens,
        block_ids=np.array(ids, dtype=np.int64),
        block_offsets=np.array(offsets, dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    arrival_ms: float
    input_tokens: int
    output_tokens: int
    hash_ids: list[int]


def _parse(raw: bytes) -> _Row | str:
    """The row, or what is wrong with it."""
    try:
        row = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return "not a JSON object"
    if not isinstance(row, dict):
        return "not a JSON object"
    time_key, input_key, output_key = MOONCAKE_KEYS
    arrival_ms = row.get(time_key)
    if isinstance(arrival_ms, bool) or not isinstance(arrival_ms, (int, float)) or not 0 <= arrival_ms <= 2**53:
        return f"{time_key} is not a number of milliseconds"
    for key in (input_key, output_key):
        if type(row.get(key)) is not int or not 0 <= row[key] <= _MAX_TOKENS:
            return f"{key} is not a number of tokens"
    hash_ids = row.get("hash_ids") or []
    if not isinstance(hash_ids, list) or not all(type(item) is int and abs(item) < 2**63 for item in hash_ids):
        return "hash_ids is not a list of whole numbers"
    return _Row(float(arrival_ms), row[input_key], row[output_key], hash_ids)
