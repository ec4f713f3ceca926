"""The trace formats that are known, and how content tells them apart."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from workbench.scenario.arrivals import TraceColumns
from workbench.scenario.errors import ScenarioError

TimeUnit = Literal["s", "ms", "us", "ns", "timestamp"]
UNIT_SECONDS: dict[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """Which columns of a CSV mean what."""

    name: str
    arrival: str
    input_tokens: str
    output_tokens: str
    time_unit: TimeUnit

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.arrival, self.input_tokens, self.output_tokens


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
KNOWN = (
    *(f"{known.name} ({','.join(known.columns)})" for known in CSV_FORMATS),
    f"mooncake (JSON lines with {','.join(MOONCAKE_KEYS)})",
    "csv (any, with columns: given in the scenario)",
)


@dataclass(frozen=True, slots=True)
class Mooncake:
    """JSON lines: timestamp (ms), input_length, output_length, hash_ids of 512-token blocks."""

    name: str = "mooncake"
    block_tokens: int = 512


TraceFormat = CsvFormat | Mooncake


@contextmanager
def open_trace(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked where its content is gzip. Raises `OSError` or `EOFError`."""
    with path.open("rb") as stream:
        is_packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        if not is_packed:
            yield stream
            return
        with gzip.GzipFile(fileobj=stream) as unpacked:
            yield cast(BinaryIO, unpacked)


def header_of(path: Path) -> tuple[str, str]:
    """(first line that is not blank, its delimiter). Raises `ScenarioError` for an empty or a binary file."""
    try:
        with open_trace(path) as stream:
            head = stream.read(1 << 16)
    except (OSError, EOFError, zlib.error) as error:
        raise ScenarioError(f"{path}: cannot be read ({error})") from None
    if not head.strip():
        raise ScenarioError(f"{path}: the trace is empty. Give a file with a header and at least one row")
    try:
        text = io.TextIOWrapper(io.BytesIO(head), "utf-8-sig", errors="strict" if b"\0" in head else "replace").read()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ScenarioError(f"{path}: is a binary file, not a trace")
    first = next(line for line in text.splitlines() if line.strip())
    delimiter = max(",;\t", key=first.count)
    return first, delimiter


def detect_format(path: Path, stated: str, columns: TraceColumns | None) -> TraceFormat:
    """The format by content, checked against the one the scenario states.

    Raises `ScenarioError` naming the keys that were found and the formats that are known.
    """
    first, delimiter = header_of(path)
    if first.lstrip()[:1] in "{[":
        found = _json_keys(first)
        detected: TraceFormat | None = Mooncake() if set(MOONCAKE_KEYS) <= set(found) else None
    else:
        found = [name.strip().strip('"') for name in first.split(delimiter)]
        detected = next((known for known in CSV_FORMATS if set(known.columns) <= set(found)), None)
        if columns is not None:
            detected = CsvFormat(
                name="csv",
                arrival=columns.arrival,
                input_tokens=columns.input_tokens,
                output_tokens=columns.output_tokens,
                time_unit=columns.time_unit,
            )
            missing = [name for name in detected.columns if name not in found]
            if missing:
                raise ScenarioError(f"{path}: no column {missing[0]!r}. Columns: {_listed(found)}")
    if detected is None or (stated not in ("auto", detected.name)):
        wanted = "a known trace format" if stated == "auto" else f"the format {stated!r}"
        raise ScenarioError(f"{path}: is not {wanted}. Found: {_listed(found)}.", f"Known: {'; '.join(KNOWN)}")
    return detected


def _json_keys(line: str) -> list[str]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ["JSON that does not parse line by line"]
    return list(value) if isinstance(value, dict) else [f"a JSON {type(value).__name__}"]


def _listed(names: list[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= 120 else text[:117] + "..."
