"""The trace formats that are known, and how content tells them apart."""

from __future__ import annotations

import csv
import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from workbench.scenario.arrivals import TraceColumns
from workbench.scenario.errors import ScenarioError
from workbench.workload.traces.json_values import NotJson, iterate_values
from workbench.workload.traces.opening import head_of, open_trace

TimeUnit = Literal["s", "ms", "us", "ns", "timestamp"]
UNIT_SECONDS: dict[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_DELIMITERS = ",;\t|"
_NUM_SAMPLED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """Which columns of a CSV mean what."""

    name: str
    arrival: str | None
    """None: the file has no times."""
    input_tokens: str
    output_tokens: str
    time_unit: TimeUnit
    session: str | None = None
    """Column with the conversation, used where the file has it."""
    status: str | None = None
    """Column that says whether the request succeeded."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What must be there."""
        return tuple(name for name in (self.arrival, self.input_tokens, self.output_tokens) if name is not None)


CSV_FORMATS = (
    CsvFormat(
        name="azure",
        arrival="TIMESTAMP",
        input_tokens="ContextTokens",
        output_tokens="GeneratedTokens",
        time_unit="timestamp",
    ),
    CsvFormat(
        name="burstgpt",
        arrival="Timestamp",
        input_tokens="Request tokens",
        output_tokens="Response tokens",
        time_unit="s",
        session="Session ID",
    ),
    CsvFormat(
        name="vidur",
        arrival="arrived_at",
        input_tokens="num_prefill_tokens",
        output_tokens="num_decode_tokens",
        time_unit="s",
    ),
)
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat:
    """A format whose rows are JSON objects, known by the keys of a row."""

    name: str
    needs: tuple[tuple[str, ...], ...]
    """Each group must be there in full; one group is enough."""
    has_text: bool = False

    def fits(self, row: dict[str, Any]) -> bool:
        return any(all(key in row for key in group) for group in self.needs)


JSON_FORMATS = (
    JsonFormat(name="mooncake", needs=(MOONCAKE_KEYS,)),
    JsonFormat(name="agentic", needs=(("requests", "block_size"), ("requests", "hash_id_scope"))),
    JsonFormat(name="sharegpt", needs=(("conversations",), ("conversation",)), has_text=True),
    JsonFormat(name="openai-batch", needs=(("custom_id", "body"), ("url", "body")), has_text=True),
    JsonFormat(
        name="requests",
        needs=(
            ("messages",),
            ("prompt", "arrived_at"),
            ("prompt_token_ids",),
            ("num_prefill_tokens", "num_decode_tokens"),
            ("input_tokens", "output_tokens"),
        ),
        has_text=True,
    ),
    JsonFormat(name="vllm-custom", needs=(("prompt",),), has_text=True),
)
KNOWN = (
    *(f"{known.name} ({','.join(known.columns)})" for known in CSV_FORMATS),
    *(f"{known.name} (JSON with {','.join(known.needs[0])})" for known in JSON_FORMATS),
    "csv and jsonl (any, with columns: named; --set columns.input_tokens=NAME and so on for analyze, "
    "--set workload.arrivals.columns.input_tokens=NAME and so on for plan and run)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedJson:
    """JSON rows whose keys the user names."""

    columns: TraceColumns
    name: str = "jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvLayout:
    """How the rows of a CSV file lie."""

    header: tuple[str, ...]
    header_line: int
    """From 1."""
    delimiter: str
    has_quotes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """A file's format by its content."""

    format: CsvFormat | JsonFormat | MappedJson
    head: str
    layout: CsvLayout | None = None
    """For CSV."""


def detect_format(path: Path, stated: str = "auto", columns: TraceColumns | None = None) -> Detected:
    """The format by content, checked against the one the scenario states.

    Raises `ScenarioError` naming the keys that were found and the formats that are known.
    """
    head = head_of(path)
    if head.lstrip()[:1] in ("{", "["):
        detected, found = _detect_json(path, head, columns)
    else:
        detected, found = _detect_csv(path, head, columns)
    if detected is None or stated not in ("auto", detected.format.name):
        wanted = "a known trace format" if stated == "auto" else f"the format {stated!r}"
        raise ScenarioError(f"{path}: is not {wanted}. Found: {_listed(found)}.", f"Known: {'; '.join(KNOWN)}")
    return detected


def _detect_json(path: Path, head: str, columns: TraceColumns | None) -> tuple[Detected | None, list[str]]:
    rows: list[Any] = []
    with open_trace(path) as stream:
        rows = [value for _, value in itertools.islice(iterate_values(stream, head), _NUM_SAMPLED)]
    objects = [row for row in rows if isinstance(row, dict)]
    if columns is not None and objects:
        return Detected(format=MappedJson(columns=columns), head=head), list(objects[0])
    for known in JSON_FORMATS:
        if any(known.fits(row) for row in objects):
            return Detected(format=known, head=head), list(objects[0])
    if objects:
        return None, list(dict.fromkeys(key for row in objects for key in row))
    first = rows[0] if rows else NotJson("an empty array")
    return None, [first.reason if isinstance(first, NotJson) else f"JSON {type(first).__name__}"]


def _detect_csv(path: Path, head: str, columns: TraceColumns | None) -> tuple[Detected | None, list[str]]:
    lines = re.split(r"\r\n|\r|\n", head)
    number = next((index for index, line in enumerate(lines) if line.strip()), None)
    if number is None:
        raise ScenarioError(f"{path}: the trace is empty. Give a file with at least one request")
    first = lines[number]
    delimiter = max(_DELIMITERS, key=first.count)
    header = tuple(name.strip() for name in next(csv.reader([first], delimiter=delimiter)))
    layout = CsvLayout(
        header=header,
        header_line=number + 1,
        delimiter=delimiter,
        has_quotes=any(_has_quoted_cell(line, delimiter) for line in lines[number : number + 50]),
    )
    known = _mapped(path, columns, header) if columns is not None else _known(header)
    if known is None:
        return None, list(header)
    if known.arrival is not None and columns is None:
        known = replace(known, time_unit=_unit_of(known, lines[number + 1 :], layout))
    return Detected(format=known, head=head, layout=layout), list(header)


def _has_quoted_cell(line: str, delimiter: str) -> bool:
    """A quote at both ends of a cell; a stray one is a fault of its cell and must not swallow the lines after it."""
    mark = re.escape(delimiter)
    return re.search(rf'(?:^|{mark})"[^"]*"(?:{mark}|$)', line) is not None


def _known(header: tuple[str, ...]) -> CsvFormat | None:
    return next((known for known in CSV_FORMATS if set(known.columns) <= set(header)), None)


def _mapped(path: Path, columns: TraceColumns, header: tuple[str, ...]) -> CsvFormat:
    mapped = CsvFormat(
        name="csv",
        arrival=columns.arrival,
        input_tokens=columns.input_tokens,
        output_tokens=columns.output_tokens,
        time_unit=columns.time_unit,
        session=columns.session,
        status=columns.status,
    )
    missing = [name for name in (*mapped.columns, mapped.session, mapped.status) if name and name not in header]
    if missing:
        raise ScenarioError(f"{path}: no column {missing[0]!r}. Columns: {_listed(list(header))}")
    return mapped


def _unit_of(known: CsvFormat, lines: list[str], layout: CsvLayout) -> TimeUnit:
    """Dates with times or plain seconds, whichever most of the first rows hold: such files are often rewritten."""
    column = layout.header.index(known.arrival or "")
    cells = [row[column] for row in csv.reader(lines[:_NUM_SAMPLED], delimiter=layout.delimiter) if len(row) > column]
    num_dates = sum(bool(re.match(r"\s*\d{4}-\d\d?-\d\d?([T ]|$)", cell)) for cell in cells)
    num_numbers = sum(bool(re.fullmatch(r"\s*[-+]?[\d.]+(?:[eE][-+]?\d+)?\s*", cell)) for cell in cells)
    if num_dates == num_numbers:
        return known.time_unit
    return "timestamp" if num_dates > num_numbers else "s"


def _listed(names: list[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= 200 else text[:197] + "..."
