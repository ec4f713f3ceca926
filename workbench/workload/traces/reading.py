"""A file of requests as it is: every row that can be read, in order of arrival, and an account of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.scenario.arrivals import RequestFile, TraceColumns
from workbench.scenario.errors import ScenarioError
from workbench.workload.text import load_encoder
from workbench.workload.traces.formats import CsvFormat, JsonFormat, MappedJson, detect_format
from workbench.workload.traces.hash_readers import read_agentic, read_mooncake
from workbench.workload.traces.json_values import iterate_values
from workbench.workload.traces.opening import open_trace
from workbench.workload.traces.request_rows import note_breakage
from workbench.workload.traces.table import Ledger, TraceTable
from workbench.workload.traces.text_readers import read_mapped, read_openai_batch, read_prompts, read_sharegpt

_CHUNK = 1 << 20

_TEXT_READERS = {
    "sharegpt": read_sharegpt,
    "openai-batch": read_openai_batch,
    "vllm-custom": read_prompts,
    "requests": read_prompts,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrace:
    """What is in a file, before any policy."""

    format: str
    table: TraceTable
    ledger: Ledger
    """Of this file so far; copy it before adding to it."""
    head_s: float | None
    """Time of the first arrival on the file's own clock; None where that has no zero (dates)."""


def read_requests(file: RequestFile) -> ReadTrace:
    """All rows of a file. The last files are remembered: a sweep asks for the same one in every trial.

    Raises `ScenarioError` for a file that is not there, is no known format or breaks the reader's rules as a whole.
    """
    try:
        status = file.path.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScenarioError(f"{file.path}: cannot be read ({reason})") from None
    version = (status.st_mtime_ns, status.st_size)
    return _read(file.path, version, file.format, file.columns, file.tokenizer)


@lru_cache(maxsize=2)
def _read(
    path: Path, version: tuple[int, int], stated: str, columns: TraceColumns | None, tokenizer: str | None
) -> ReadTrace:
    ledger = Ledger()
    if _is_parquet(path):
        from workbench.workload.traces.parquet_reader import read_own_requests

        table = read_own_requests(path, ledger)
        return ReadTrace(format="workbench", table=_in_order(table), ledger=ledger, head_s=_head_s("s", table))
    detected = detect_format(path, stated, columns)
    known = detected.format
    if isinstance(known, CsvFormat):
        from workbench.workload.traces.csv_reader import read_csv_trace  # pyarrow: slow to import, needed here only

        assert detected.layout is not None
        table = read_csv_trace(path, known, detected.layout, ledger)
    else:
        table = _read_json(path, detected.head, known, tokenizer, ledger)
    if table.has_times and known.unit_note is not None:
        ledger.note(known.unit_note)
    head_s = _head_s(known.time_unit, table)
    if known.name == "agentic":  # sub-agents run beside what follows them in the file
        table = _in_order(table)
    else:
        late = _late_rows(table)
        ledger.add("arrives before the row above it: sorted", "kept", table.lines[late])
        table = _in_order(table) if len(late) else _from_zero(table)
    return ReadTrace(format=known.name, table=table, ledger=ledger, head_s=head_s)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"PAR1"


def _head_s(time_unit: str, table: TraceTable) -> float | None:
    if time_unit == "timestamp" or not table.has_times or len(table) == 0:
        return None
    return float(table.arrival_s.min())


def _read_json(
    path: Path, head: str, known: JsonFormat | MappedJson, tokenizer: str | None, ledger: Ledger
) -> TraceTable:
    with open_trace(path) as stream:
        last_line = 0

        def values() -> Iterator[tuple[int, Any]]:
            nonlocal last_line
            for line, value in iterate_values(stream, head):
                last_line = line
                yield line, value

        if isinstance(known, MappedJson):
            table = read_mapped(values(), ledger, known)
        elif known.has_text:
            encoder = load_encoder(tokenizer)
            read: Callable[..., TraceTable] = _TEXT_READERS[known.name]
            table = read(values(), ledger, encoder, *([known.time_unit] if known.time_keys else []))
            if table.tokens is not None:
                ledger.note(_describe_tokenizer(encoder.name))
        elif known.name == "mooncake":
            table = read_mooncake(values(), ledger, known.time_unit)
        else:
            table = read_agentic(values(), ledger)
        note_breakage(stream.breakage, last_line, ledger)
    return table


def _describe_tokenizer(name: str) -> str:
    if name == "bytes":
        return (
            "text counted in bytes of UTF-8, one token each: no tokenizer given (English has about 4 bytes per token)"
        )
    return f"text tokenized by {name}, without a chat template"


def _late_rows(table: TraceTable) -> npt.NDArray[np.int64]:
    """Rows that arrive before the one above them; in chunks, because all gaps at once are as large as the times."""
    found = [np.zeros(0, dtype=np.int64)]
    for start in range(0, len(table) - 1, _CHUNK):
        times = table.arrival_s[start : start + _CHUNK + 1]
        found.append(np.flatnonzero(times[1:] < times[:-1]) + start + 1)
    return np.concatenate(found)


def _in_order(table: TraceTable) -> TraceTable:
    """By arrival; plain columns are reordered in place, one after another, because a second table may not fit."""
    order = np.argsort(table.arrival_s, kind="stable")
    if table.block_ids is not None or table.tokens is not None:
        return _from_zero(table.take(order))
    order = order.astype(np.int32)
    table = replace(table, lines=table.lines[order])
    columns = (table.arrival_s, table.input_tokens, table.output_tokens)
    for column in (*columns, table.failed, table.session_index, table.turn):
        if column is not None:
            column[:] = column[order]
    return _from_zero(table)


def _from_zero(table: TraceTable) -> TraceTable:
    if len(table) and table.arrival_s[0] != 0:
        np.subtract(table.arrival_s, table.arrival_s[0], out=table.arrival_s)
    return table
