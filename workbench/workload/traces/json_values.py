"""The values of a JSON file, one at a time: lines of objects, an array, or one object, whichever the file is."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workbench.workload.traces.opening import TraceStream

_CHUNK = 1 << 20
_NEAR_END = 16
"""The decoder stops up to this far before the end of an unfinished value (inside an escape or a literal)."""
_SPACE = " \t\r\n"
_CUT = "the file ends inside a value"


@dataclass(frozen=True, slots=True)
class NotJson:
    """Stands for a row that is no JSON."""

    reason: str


def iterate_values(stream: TraceStream, head: str) -> Iterator[tuple[int, Any]]:
    """(line, value) of each value; what does not parse is a `NotJson`, and reading goes on with the next row.

    `head` is the beginning of the same file, which decides between lines and one large value.
    """
    if _is_lines(head):
        yield from _lines(stream)
    else:
        yield from _Scanner(stream).values()


def _is_lines(head: str) -> bool:
    """An object per line, unless the file is an array or no line in sight is an object by itself."""
    lines = head.split("\n")
    whole = lines[:-1]
    if head.lstrip(_SPACE)[:1] == "[":
        # An array; but lines of which only some are arrays are lines.
        return any(_is_object(line) for line in whole[:50]) and not any(
            line.rstrip().endswith(",") for line in whole[:50] if line.strip()
        )
    return not any(line.strip() for line in whole) or any(_is_object(line) for line in whole[:50])


def _is_object(line: str) -> bool:
    return line.lstrip()[:1] == "{" and isinstance(_parse(line), dict)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated string")
        return NotJson("not valid JSON: ends inside a value" if is_cut else "not valid JSON")
    except (ValueError, RecursionError):
        return NotJson("not valid JSON")


def _lines(stream: TraceStream) -> Iterator[tuple[int, Any]]:
    text = io.TextIOWrapper(io.BufferedReader(stream, _CHUNK), "utf-8-sig", errors="replace", newline="\n")
    for line, row in enumerate(text, 1):
        if row.strip():
            # A comma after the value: a line of an array whose brackets were cut away.
            yield line, _parse(row.rstrip().removesuffix(","))


class _Scanner:
    """Reads an array (or values one after another) without holding it whole."""

    def __init__(self, stream: TraceStream) -> None:
        self._text = io.TextIOWrapper(io.BufferedReader(stream, _CHUNK), "utf-8-sig", errors="replace", newline="")
        self._buffer = ""
        self._position = 0
        self._line = 1
        self._is_at_end = False
        self._decoder = json.JSONDecoder()

    def values(self) -> Iterator[tuple[int, Any]]:
        indent: str | None = None
        while True:
            character = self._next_character(_SPACE + ",[]" if indent is None else _SPACE + ",]")
            if not character:
                return
            if indent is None:
                indent = self._indent()
            line = self._line
            value = self._decode()
            if not isinstance(value, NotJson) or self._skip_to_row(indent):
                yield line, value
            else:
                is_cut = value.reason == _CUT
                yield line, value if is_cut else NotJson(f"{value.reason}; what follows cannot be told apart into rows")
                return

    def _next_character(self, skipped: str) -> str:
        """The character at the next position that holds none of `skipped`; empty at the end."""
        while True:
            while self._position < len(self._buffer):
                character = self._buffer[self._position]
                if character not in skipped:
                    return character
                self._advance(self._position + 1)
            if not self._read():
                return ""

    def _advance(self, position: int) -> None:
        self._line += self._buffer.count("\n", self._position, position)
        self._position = position

    def _read(self, size: int = _CHUNK) -> bool:
        if self._is_at_end:
            return False
        piece = self._text.read(size)
        self._is_at_end = not piece
        self._buffer = self._buffer[self._position :] + piece
        self._position = 0
        return bool(piece)

    def _indent(self) -> str:
        """What stands before the first value on its line: rows begin after the same."""
        start = self._buffer.rfind("\n", 0, self._position) + 1
        before = self._buffer[start : self._position]
        return before if not before.strip() else ""

    def _decode(self) -> Any:
        size = _CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                is_cut = error.pos >= len(self._buffer) - _NEAR_END or error.msg.startswith("Unterminated string")
                if is_cut and self._read(size):
                    size *= 2  # so that a long value is scanned a few times, not once per chunk
                    continue
                return NotJson(_CUT if is_cut else "not valid JSON")
            except (ValueError, RecursionError):
                return NotJson("not valid JSON")
            if end == len(self._buffer) and self._read():
                continue  # a number could go on
            self._advance(end)
            return value

    def _skip_to_row(self, indent: str) -> bool:
        """To the next line that begins like the first row; False at the end."""
        mark = "\n" + indent + "{"
        while True:
            found = self._buffer.find(mark, self._position)
            if found >= 0:
                self._advance(found + len(mark) - 1)
                return True
            self._advance(max(self._position, len(self._buffer) - len(mark)))
            if not self._read():
                return False


def nested(value: Any, dotted_key: str) -> Any:
    """Return what lies under a key, or under keys one in another as `a.b`; None where nothing does."""
    if isinstance(value, dict) and dotted_key in value:
        return value[dotted_key]
    for key in dotted_key.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
