"""CSV traces, batch by batch and only the columns that count: fast where a batch is clean, row by row where not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from workbench.scenario.errors import ScenarioError
from workbench.workload.traces.formats import CsvFormat, CsvLayout
from workbench.workload.traces.growing import Growing
from workbench.workload.traces.opening import TraceStream, open_trace
from workbench.workload.traces.status import is_failure
from workbench.workload.traces.table import (
    MAX_TIME_S,
    MAX_TOKENS,
    BoolArray,
    FloatArray,
    IntArray,
    Ledger,
    LineRange,
    TraceTable,
)
from workbench.workload.traces.units import UNIT_SECONDS

_BLOCK_BYTES = 1 << 20
_LONGEST_ROW_BYTES = 64 << 20
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def read_csv_trace(path: Path, known: CsvFormat, layout: CsvLayout, ledger: Ledger) -> TraceTable:
    """All usable rows; unusable ones are entered in the ledger."""
    try:
        return _Reader(path, known, layout, ledger).read(_BLOCK_BYTES)
    except _RowTooLong:
        pass
    try:
        return _Reader(path, known, layout, ledger).read(_LONGEST_ROW_BYTES)
    except _RowTooLong:
        raise ScenarioError(f"{path}: has a row of over {_LONGEST_ROW_BYTES >> 20} MiB. Is it a trace?") from None


class _RowTooLong(Exception):
    """A row does not fit a block."""


class _Reader:
    """One pass over a file."""

    def __init__(self, path: Path, known: CsvFormat, layout: CsvLayout, ledger: Ledger) -> None:
        self.path, self.known, self.layout, self.ledger = path, known, layout, ledger
        self.times, self.inputs = Growing(np.float64), Growing(np.int32)
        self.outputs = Growing(np.int32)
        self.lines: Growing | None = None  # only once they do not follow one another
        self.sessions, self.failed = Growing(np.int32), Growing(np.bool_)
        self.session_numbers: dict[str, int] = {}
        self.first_ns: int | None = None
        self.time_types = [pa.timestamp("ns"), pa.timestamp("ns", "UTC")]
        self.malformed: list[int] = []  # lines
        self.blank: list[int] = []
        self.last_line = layout.header_line
        self.num_cut = 0
        self.session = known.session if known.session in layout.header else None

    def read(self, block_bytes: int) -> TraceTable:
        with open_trace(self.path) as stream:
            try:
                self._read_batches(stream, block_bytes)
            except pa.ArrowInvalid as error:
                text = str(error).splitlines()[0]
                if "straddl" in text:
                    raise _RowTooLong from None
                if "Empty CSV" not in text:
                    raise ScenarioError(f"{self.path}: not a CSV file that can be read ({text[:120]})") from None
            except OSError as error:
                raise ScenarioError(f"{self.path}: cannot be read to its end ({error})") from None
            self._account(stream)
        return self._table()

    def _read_batches(self, stream: TraceStream, block_bytes: int) -> None:
        layout = self.layout
        names = [f"c{index}" for index in range(len(layout.header))]
        wanted = [name for name in (*self.known.columns, self.session, self.known.status) if name is not None]
        line = layout.header_line + 1
        with csv.open_csv(
            stream,
            read_options=csv.ReadOptions(
                use_threads=False, block_size=block_bytes, skip_rows=layout.header_line, column_names=names
            ),
            parse_options=csv.ParseOptions(
                delimiter=layout.delimiter,
                # Without quotes in sight a stray one is a bad value, not the beginning of a text over many lines.
                quote_char='"' if layout.has_quotes else False,
                newlines_in_values=layout.has_quotes,
                ignore_empty_lines=False,  # they count as lines
                invalid_row_handler=self._note_malformed,
            ),
            convert_options=csv.ConvertOptions(
                include_columns=[self._column(name) for name in wanted],
                column_types={self._column(name): pa.string() for name in wanted},
            ),
        ) as reader:
            for batch in reader:
                lines, line = self._line_numbers(line, batch.num_rows)
                self.last_line = line - 1
                self._convert(batch, lines)

    def _line_numbers(self, first: int, count: int) -> tuple[IntArray, int]:
        """Lines of `count` rows from line `first` on, around those the parser skipped, and the line after them."""
        after = first + count
        skipped = []
        for number in sorted(number for number in (*self.malformed, *self.blank) if number >= first):
            if number >= after and count:  # the parser is ahead of the batches
                break
            skipped.append(number)
            after += 1
        lines = np.arange(first, after, dtype=np.int64)
        return (lines[~np.isin(lines, skipped)] if skipped else lines), after

    def _column(self, name: str) -> str:
        return f"c{self.layout.header.index(name)}"

    def _note_malformed(self, row: csv.InvalidRow) -> str:
        number = int(row.number) if row.number is not None else 0
        (self.malformed if row.text.strip() else self.blank).append(number)
        return "skip"

    def _convert(self, batch: pa.RecordBatch, lines: IntArray) -> None:
        known, ledger = self.known, self.ledger
        ledger.num_read += batch.num_rows
        decimal_comma = self.layout.delimiter == ";"
        times, time_ok = self._times(batch, decimal_comma)
        inputs, input_ok = _tokens(batch.column(self._column(known.input_tokens)), decimal_comma)
        outputs, output_ok = _tokens(batch.column(self._column(known.output_tokens)), decimal_comma)
        usable = time_ok & input_ok & output_ok
        extras = self._extras(batch)
        if usable.all():
            columns: list[Any] = [times, inputs, outputs, *extras]
        else:
            empty = ~usable & self._empty_rows(batch)
            ledger.num_read -= int(np.count_nonzero(empty))
            ledger.add("line without values", "ignored", lines[empty])
            time_ok, input_ok, output_ok = time_ok | empty, input_ok | empty, output_ok | empty
            ledger.add(f"{known.arrival} is not a time", "dropped", lines[~time_ok])
            bad_input, bad_output = time_ok & ~input_ok, time_ok & input_ok & ~output_ok
            ledger.add(f"{known.input_tokens} is not a number of tokens", "dropped", lines[bad_input])
            ledger.add(f"{known.output_tokens} is not a number of tokens", "dropped", lines[bad_output])
            columns = [column[usable] for column in (times, inputs, outputs, *extras)]
        self._add_lines(lines[usable])
        targets = [self.times, self.inputs, self.outputs]
        targets += [self.sessions] if self.session else []
        targets += [self.failed] if known.status else []
        for target, values in zip(targets, columns, strict=True):
            target.extend(values)

    def _empty_rows(self, batch: pa.RecordBatch) -> BoolArray:
        """Blank lines come as rows of empty cells."""
        empty = np.ones(batch.num_rows, dtype=np.bool_)
        for name in self.known.columns:
            lengths = pc.binary_length(pc.utf8_trim_whitespace(batch.column(self._column(name))))
            empty &= lengths.to_numpy(zero_copy_only=False) == 0
        return empty

    def _add_lines(self, lines: IntArray) -> None:
        before, first = len(self.times), self.layout.header_line + 1
        if self.lines is None:
            if len(lines) == 0 or (lines[0] == first + before and lines[-1] - lines[0] == len(lines) - 1):
                return
            self.lines = Growing(np.int32)
            self.lines.extend(np.arange(first, first + before, dtype=np.int32))
        self.lines.extend(lines)

    def _times(self, batch: pa.RecordBatch, decimal_comma: bool) -> tuple[FloatArray, BoolArray]:
        known = self.known
        if known.arrival is None:
            return np.zeros(batch.num_rows), np.ones(batch.num_rows, dtype=np.bool_)
        column = batch.column(self._column(known.arrival))
        if known.time_unit == "timestamp":
            stamps, ok = self._timestamps_ns(column)
            if self.first_ns is None and ok.any():
                self.first_ns = int(stamps[ok][0])
            return (stamps - (self.first_ns or 0)) / 1e9, ok
        values, ok = _numbers(column, decimal_comma)
        unit = UNIT_SECONDS[known.time_unit]
        if unit != 1.0:
            values = values * unit
        ok &= (values >= 0) & (values <= MAX_TIME_S)
        return values, ok

    def _timestamps_ns(self, column: Any) -> tuple[IntArray, BoolArray]:
        """(nanoseconds since 1970, which of them were readable); without a zone means UTC."""
        for kind in self.time_types:
            try:
                stamps = pc.cast(pc.cast(column, kind), pa.int64()).to_numpy(zero_copy_only=False)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue
            if kind != self.time_types[0]:  # the other kind would fail on every batch, and only at its end
                self.time_types.reverse()
            return stamps, np.ones(len(stamps), dtype=np.bool_)
        return _slow_timestamps_ns(column, self.layout.delimiter == ";")

    def _extras(self, batch: pa.RecordBatch) -> list[Any]:
        found: list[Any] = []
        if self.session:
            keys = batch.column(self._column(self.session)).to_pylist()
            numbers = self.session_numbers
            found.append(
                np.array([numbers.setdefault(key, len(numbers)) if key else -1 for key in keys], dtype=np.int32)
            )
        if self.known.status:
            cells = batch.column(self._column(self.known.status)).to_pylist()
            name = self.known.status
            found.append(np.array([is_failure(name, cell) for cell in cells], dtype=np.bool_))
        return found

    def _account(self, stream: TraceStream) -> None:
        ledger = self.ledger
        ledger.num_read += len(self.malformed)
        ledger.add("wrong number of columns", "dropped", self.malformed)
        num_lines = stream.num_newlines + (0 if stream.ends_with_newline else 1)
        num_seen = max([self.last_line, *self.malformed[-1:], *self.blank[-1:]])
        if self.layout.has_quotes and num_lines > num_seen:
            ledger.note(f"{num_lines - num_seen} line ends lie inside quotes: line numbers after them are too low")
        if stream.breakage is None:
            return
        ledger.add(f"the file breaks off in or after this line ({stream.breakage})", "warned", [self.last_line])
        last = self.layout.header_line + len(self.times) if self.lines is None else self.lines.last()
        if not stream.ends_with_newline and len(self.times) and last == self.last_line:
            ledger.add("cut where the file breaks off", "dropped", [self.last_line])
            self.num_cut = 1

    def _table(self) -> TraceTable:
        known, length = self.known, len(self.times) - self.num_cut
        lines = LineRange(self.layout.header_line + 1, length) if self.lines is None else self.lines.finish(length)
        return TraceTable(
            arrival_s=self.times.finish(length),
            input_tokens=self.inputs.finish(length),
            output_tokens=self.outputs.finish(length),
            lines=lines,
            has_times=known.arrival is not None,
            failed=self.failed.finish(length) if known.status else None,
            session_index=self.sessions.finish(length) if self.session else None,
        )


def _tokens(column: Any, decimal_comma: bool) -> tuple[FloatArray, BoolArray]:
    try:
        whole = pc.cast(column, pa.int32()).to_numpy(zero_copy_only=False)
        ok = (whole >= 0) & (whole <= MAX_TOKENS)
        return whole, ok
    except pa.ArrowInvalid:
        values, ok = _numbers(column, decimal_comma)
    ok &= (values >= 0) & (values <= MAX_TOKENS) & (values == np.floor(values))
    return np.where(ok, values, 0.0), ok


def _numbers(column: Any, decimal_comma: bool) -> tuple[FloatArray, BoolArray]:
    """(values, which of them are finite numbers)."""
    try:
        values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        column = _trimmed(column)
        if decimal_comma:
            column = pc.replace_substring(column, ",", ".")
        is_number = pc.match_substring_regex(column, _NUMBER)
        values = pc.cast(pc.if_else(is_number, column, None), pa.float64()).to_numpy(zero_copy_only=False)
    ok = np.isfinite(values)
    return (values, ok) if ok.all() else (np.where(ok, values, 0.0), ok)


def _trimmed(column: Any) -> Any:
    return pc.utf8_trim_whitespace(column)


def _slow_timestamps_ns(column: Any, decimal_comma: bool) -> tuple[IntArray, BoolArray]:
    """The same, where some cells are no such times or mix zones; without a zone means UTC."""
    import pandas as pd  # knows more spellings, and which cells have none of them; slow to import

    column = _trimmed(column)
    if decimal_comma:
        column = pc.replace_substring(column, ",", ".")
    text = pd.Series(column.to_pylist(), dtype="str")
    dated = text.where(text.str.match(r"\d{4}-\d\d?-\d\d?"))
    parsed = pd.to_datetime(dated, errors="coerce", utc=True, format="ISO8601")
    parsed = parsed.where((parsed.dt.year > 1700) & (parsed.dt.year < 2250)).dt.as_unit("ns")
    ok = parsed.notna().to_numpy()
    return np.where(ok, parsed.to_numpy(dtype="datetime64[ns]").astype(np.int64), 0), ok
