"""CSV traces, batch by batch: fast where a batch is clean, row by row where it is not."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from workbench.scenario.errors import ScenarioError
from workbench.workload.traces.formats import UNIT_SECONDS, CsvFormat, header_of, open_trace
from workbench.workload.traces.table import BoolArray, FloatArray, IntArray, Ledger, TraceTable

_BLOCK_BYTES = 16 << 20
_MAX_TOKENS = 2**31 - 1


def read_csv_trace(path: Path, known: CsvFormat, ledger: Ledger) -> TraceTable:
    """All usable rows; unusable ones are entered in the ledger. Raises `ScenarioError` if the file breaks off."""
    _, delimiter = header_of(path)
    malformed: list[int] = []

    def note(row: csv.InvalidRow) -> str:
        malformed.append(row.number if row.number is not None else 0)
        return "skip"

    pieces: list[TraceTable] = []
    first_ns: int | None = None
    line = 2
    try:
        with (
            open_trace(path) as stream,
            csv.open_csv(
                stream,
                read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                parse_options=csv.ParseOptions(delimiter=delimiter, invalid_row_handler=note),
                convert_options=csv.ConvertOptions(
                    include_columns=list(known.columns), column_types=dict.fromkeys(known.columns, pa.string())
                ),
            ) as reader,
        ):
            for batch in reader:
                skipped = [number for number in malformed if number >= line]
                lines = _line_numbers(line, batch.num_rows, skipped)
                line += batch.num_rows + len(skipped)
                piece, first_ns = _convert(batch, known, lines, ledger, first_ns)
                pieces.append(piece)
    except pa.ArrowInvalid as error:
        raise ScenarioError(f"{path}: not a CSV file that can be read ({str(error).splitlines()[0][:120]})") from None
    except (OSError, EOFError, KeyError, zlib.error) as error:
        raise ScenarioError(f"{path}: cannot be read to its end ({error})") from None
    ledger.num_read += len(malformed)
    ledger.add("wrong number of columns", "dropped", malformed)
    return _joined(pieces)


def _line_numbers(first: int, count: int, skipped: list[int]) -> IntArray:
    """Lines of `count` rows from line `first` on, around those the parser skipped."""
    lines = np.arange(first, first + count + len(skipped), dtype=np.int64)
    return lines[~np.isin(lines, skipped)] if skipped else lines


def _convert(
    batch: pa.RecordBatch, known: CsvFormat, lines: IntArray, ledger: Ledger, first_ns: int | None
) -> tuple[TraceTable, int | None]:
    ledger.num_read += batch.num_rows
    if known.time_unit == "timestamp":
        stamps, time_ok = _timestamps_ns(batch.column(known.arrival))
        if first_ns is None and time_ok.any():
            first_ns = int(stamps[time_ok][0])
        arrival_s: FloatArray = (stamps - (first_ns or 0)) / 1e9
    else:
        arrival_s, time_ok = _numbers(batch.column(known.arrival))
        arrival_s = arrival_s * UNIT_SECONDS[known.time_unit]
    inputs, input_ok = _tokens(batch.column(known.input_tokens))
    outputs, output_ok = _tokens(batch.column(known.output_tokens))
    usable = time_ok & input_ok & output_ok
    ledger.add(f"{known.arrival} is not a time", "dropped", lines[~time_ok])
    ledger.add(f"{known.input_tokens} is not a number of tokens", "dropped", lines[time_ok & ~input_ok])
    ledger.add(f"{known.output_tokens} is not a number of tokens", "dropped", lines[time_ok & input_ok & ~output_ok])
    table = TraceTable(
        arrival_s=arrival_s[usable],
        input_tokens=inputs[usable].astype(np.int64),
        output_tokens=outputs[usable].astype(np.int64),
        lines=lines[usable],
    )
    return table, first_ns


def _tokens(column: Any) -> tuple[FloatArray, BoolArray]:
    values, ok = _numbers(column)
    ok &= (values >= 0) & (values <= _MAX_TOKENS) & (values == np.floor(values))
    return np.where(ok, values, 0.0), ok


def _numbers(column: Any) -> tuple[FloatArray, BoolArray]:
    """(values, which of them are finite numbers)."""
    try:
        values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        values = pd.to_numeric(column.to_pandas(), errors="coerce").to_numpy(dtype=np.float64)
    ok = np.isfinite(values)
    return np.where(ok, values, 0.0), ok


def _timestamps_ns(column: Any) -> tuple[IntArray, BoolArray]:
    """(nanoseconds since 1970, which of them were readable); without a zone means UTC."""
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            stamps = pc.cast(pc.cast(column, kind), pa.int64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        ok = pc.is_valid(stamps).to_numpy(zero_copy_only=False)
        return pc.fill_null(stamps, 0).to_numpy(zero_copy_only=False), ok
    parsed = pd.to_datetime(column.to_pandas(), errors="coerce", utc=True, format="ISO8601").dt.as_unit("ns")
    ok = parsed.notna().to_numpy()
    return np.where(ok, parsed.to_numpy(dtype="datetime64[ns]").astype(np.int64), 0), ok


def _joined(pieces: list[TraceTable]) -> TraceTable:
    def column(name: str, dtype: type) -> Any:
        return np.concatenate([np.zeros(0, dtype=dtype), *(getattr(piece, name) for piece in pieces)])

    return TraceTable(
        arrival_s=column("arrival_s", np.float64),
        input_tokens=column("input_tokens", np.int64),
        output_tokens=column("output_tokens", np.int64),
        lines=column("lines", np.int64),
    )
