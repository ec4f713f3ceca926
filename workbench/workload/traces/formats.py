"""The trace formats that are known, and how content tells them apart."""

from __future__ import annotations

import csv
import itertools
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from workbench.scenario.arrivals import TraceColumns
from workbench.scenario.errors import ScenarioError
from workbench.workload.traces.json_values import NotJson, iterate_values, nested
from workbench.workload.traces.opening import head_of, open_trace
from workbench.workload.traces.units import infer_unit

TimeUnit = Literal["s", "ms", "us", "ns", "timestamp"]
_DELIMITERS = ",;\t|"
_NUM_SAMPLED = 20
_NUMBER = r"\s*[-+]?[\d.]+(?:,\d+)?(?:[eE][-+]?\d+)?\s*"
_NUM_TIMED = 1000
"""Rows whose times decide on their unit."""


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
    unit_trust: float = 0.0
    """Powers of ten that the rate may be odd by before the unit is doubted, beyond the usual."""
    unit_note: str | None = None
    """How the unit was chosen, where numbers alone do not say."""

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
        unit_trust=2.0,  # whole seconds, and few requests
        session="Session ID",
    ),
    CsvFormat(
        name="vidur",
        arrival="arrived_at",
        input_tokens="num_prefill_tokens",
        output_tokens="num_decode_tokens",
        time_unit="s",
    ),
    CsvFormat(
        name="mooncake",
        arrival="timestamp",
        input_tokens="input_length",
        output_tokens="output_length",
        time_unit="ms",
    ),
    CsvFormat(
        name="workbench",
        arrival="arrival_s",
        input_tokens="input_tokens",
        output_tokens="output_tokens",
        time_unit="s",
    ),
    CsvFormat(
        name="workbench",
        arrival="arrival_s",
        input_tokens="num_prompt_tokens",
        output_tokens="num_output_tokens",
        time_unit="s",
    ),
)
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length")
TIME_KEYS = ("arrived_at", "arrival_s", "arrival_time", "timestamp")
"""Of objects of the format `requests`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat:
    """A format whose rows are JSON objects, known by the keys of a row."""

    name: str
    needs: tuple[tuple[str, ...], ...]
    """Each group must be there in full; one group is enough."""
    has_text: bool = False
    time_keys: tuple[str, ...] = ()
    """The first of them that a row has is its time, in `time_unit`."""
    time_unit: str = "s"
    unit_note: str | None = None
    """How the unit was chosen."""

    def fits(self, row: dict[str, Any]) -> bool:
        return any(all(key in row for key in group) for group in self.needs)


JSON_FORMATS = (
    JsonFormat(name="mooncake", needs=(MOONCAKE_KEYS,), time_keys=("timestamp",), time_unit="ms"),
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
            ("arrival_s", "num_prompt_tokens", "num_output_tokens"),
        ),
        has_text=True,
        time_keys=TIME_KEYS,
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
    time_unit: str = "s"
    unit_note: str | None = None


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
        rows = [value for _, value in itertools.islice(iterate_values(stream, head), _NUM_TIMED)]
    timed = [row for row in rows if isinstance(row, dict)]
    rows = rows[:_NUM_SAMPLED]
    objects = [row for row in rows if isinstance(row, dict)]
    if columns is not None and objects:
        times = [nested(row, columns.arrival) for row in timed] if columns.arrival else []
        unit, note = _unit_of_numbers(times, "s") if columns.time_unit == "auto" else (columns.time_unit, None)
        return Detected(format=MappedJson(columns=columns, time_unit=unit, unit_note=note), head=head), list(objects[0])
    for known in JSON_FORMATS:
        if any(known.fits(row) for row in objects):
            if known.time_keys:
                key = next((key for key in known.time_keys if any(key in row for row in objects)), known.time_keys[0])
                is_named = key.endswith("_s")
                unit, note = (
                    ("s", None) if is_named else _unit_of_numbers([row.get(key) for row in timed], known.time_unit)
                )
                known = replace(known, time_unit=unit, unit_note=note)
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
    if known.arrival is not None and (columns is None or columns.time_unit == "auto"):
        whole = lines[number + 1 : -1] if len(lines) > number + 3 else lines[number + 1 :]  # the last may be cut
        unit, note = _unit_of(known, whole, layout)
        known = replace(known, time_unit=unit, unit_note=note)
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
        time_unit="s" if columns.time_unit == "auto" else columns.time_unit,
        session=columns.session,
        status=columns.status,
    )
    missing = [name for name in (*mapped.columns, mapped.session, mapped.status) if name and name not in header]
    if missing:
        raise ScenarioError(f"{path}: no column {missing[0]!r}. Columns: {_listed(list(header))}")
    return mapped


def _unit_of(known: CsvFormat, lines: list[str], layout: CsvLayout) -> tuple[TimeUnit, str | None]:
    """Return dates with times or a unit of numbers, whichever most of the first rows hold, and how it was chosen."""
    column = layout.header.index(known.arrival or "")
    rows = csv.reader(lines[:_NUM_TIMED], delimiter=layout.delimiter)
    cells = [row[column] for row in rows if len(row) > column]
    num_dates = sum(bool(re.match(r"\s*\d{4}-\d\d?-\d\d?([T ]|$)", cell)) for cell in cells[:_NUM_SAMPLED])
    numbers = [cell.strip().replace(",", ".") for cell in cells if re.fullmatch(_NUMBER, cell)]
    if num_dates and num_dates >= len(numbers[:_NUM_SAMPLED]):
        return "timestamp", None
    usual = "s" if known.time_unit == "timestamp" else known.time_unit
    if not numbers or (known.arrival or "").endswith("_s"):
        return (usual if numbers else known.time_unit), None
    unit, note = _unit_of_numbers([float(number) for number in numbers], usual, known.unit_trust)
    return cast("TimeUnit", unit), note


def _unit_of_numbers(values: list[Any], usual: str, trust: float = 0.0) -> tuple[str, str | None]:
    """Return the unit of those values that are numbers, and how it was chosen; the usual one where there are none."""
    times = [
        float(value)
        for value in values
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    ]
    if not times:
        return usual, None
    found = infer_unit(times, usual, trust)
    return found.unit, found.sentence


def _listed(names: list[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= 200 else text[:197] + "..."
