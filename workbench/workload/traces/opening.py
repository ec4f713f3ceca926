"""A trace file's bytes: unpacked where the content is gzip, as UTF-8, and readable up to where it breaks off."""

from __future__ import annotations

import codecs
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from workbench.scenario.errors import ScenarioError

_HEAD_BYTES = 1 << 16
_PACKED_BYTES = 1 << 16
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class ByteSource(Protocol):
    """What readers need of a stream."""

    def read(self, size: int = -1, /) -> bytes: ...


class TraceStream(io.RawIOBase):
    """UTF-8 up to the end, or up to where the packed data break off; `breakage` says why, then. Bytes that are no text
    become U+FFFD, which no number and no key has."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._decoder: codecs.IncrementalDecoder | None = None  # from the first byte that is not ASCII on
        self._left = b""
        self.breakage: str | None = None
        self.ends_with_newline = True
        self.num_newlines = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; empty at the end only. Spares the copies of the inherited one."""
        if size < 0:
            return self.readall()
        data = self._left or self._next(size)
        if len(data) > size:
            data, self._left = data[:size], data[size:]
        else:
            self._left = b""
        if data:
            self.ends_with_newline = data[-1:] in (b"\n", b"\r")
            self.num_newlines += data.count(b"\n")
        return data

    def _next(self, size: int) -> bytes:
        """More text; empty at the end only."""
        while self.breakage is None:
            try:
                data = self._source.read(size)
            except (EOFError, zlib.error) as error:
                self.breakage, data = str(error), b""
            if self._decoder is None and data.isascii():
                return data
            self._decoder = self._decoder or codecs.getincrementaldecoder("utf-8")("replace")
            text = self._decoder.decode(data, final=not data).encode("utf-8", "replace")
            if text or not data:
                return text
        return b""


@contextmanager
def open_trace(path: Path) -> Iterator[TraceStream]:
    """The file's bytes. Raises `ScenarioError` where it cannot be opened."""
    try:
        raw = path.open("rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScenarioError(f"{path}: cannot be read ({reason})") from None
    with raw:
        is_packed = _peek(raw, path)[:2] == b"\x1f\x8b"
        source: ByteSource = _Unpacked(raw) if is_packed else raw
        try:
            first = source.read(2)
        except (OSError, EOFError, zlib.error) as error:
            raise ScenarioError(f"{path}: cannot be read ({error})") from None
        raw.seek(0)
        source = _Unpacked(raw) if is_packed else raw
        yield TraceStream(_Utf8(source) if first in _UTF16 else source)


def _peek(raw: BinaryIO, path: Path) -> bytes:
    try:
        first = raw.read(2)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror or error})") from None
    raw.seek(0)
    return first


class _Unpacked:
    """Unpacks gzip. Unlike `gzip.GzipFile` it gives everything before the place where the data break off."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._unpacker = zlib.decompressobj(wbits=31)
        self._packed = b""

    def read(self, size: int = -1, /) -> bytes:
        """At least one byte, unless the data are at their end. Raises `EOFError` or `zlib.error` where they break."""
        while True:
            if not self._packed:
                self._packed = self._raw.read(_PACKED_BYTES)
            if self._unpacker.eof:
                if not self._packed.startswith(b"\x1f\x8b"):
                    return b""  # the end; what may follow is padding
                self._unpacker = zlib.decompressobj(wbits=31)
            if not self._packed:
                raise EOFError("the packed data end too early")
            data = self._unpacker.decompress(self._packed, max(size, 1))
            self._packed = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            if data:
                return data


class _Utf8:
    """From UTF-16, as spreadsheets save it with a byte order mark."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._left = b""

    def read(self, size: int = -1, /) -> bytes:
        while not self._left:
            data = self._source.read(max(size, 1))
            self._left = self._decoder.decode(data, final=not data).encode("utf-8", "replace")
            if not data:
                break
        given, self._left = self._left[:size], self._left[size:]
        return given


def head_of(path: Path) -> str:
    """The first 64 KiB as text without a byte order mark. Raises `ScenarioError` for an empty or a binary file."""
    with open_trace(path) as stream:
        head = b""
        while len(head) < _HEAD_BYTES and (piece := stream.read(_HEAD_BYTES - len(head))):
            head += piece
        if not head and stream.breakage is not None:
            raise ScenarioError(f"{path}: cannot be read ({stream.breakage})")
    if b"\0" in head:
        raise ScenarioError(f"{path}: is a binary file, not a trace")
    if not head.removeprefix(codecs.BOM_UTF8).strip():
        raise ScenarioError(f"{path}: the trace is empty. Give a file with at least one request")
    return head.decode("utf-8-sig", errors="replace")
