"""What an importer gives: columns, and an account of every row."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_NUM_LINES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """Rows of one kind that were not used as they are."""

    kind: str
    """For example `no output tokens`."""
    action: str
    """What was done: `dropped`, `clipped`, ..."""
    count: int
    lines: tuple[int, ...]
    """Line numbers of the first five in the file."""

    def describe(self) -> str:
        shown = ", ".join(map(str, self.lines))
        more = f", and {self.count - len(self.lines)} more" if self.count > len(self.lines) else ""
        where = f" (line{'s' if self.count > 1 else ''} {shown}{more})" if self.lines else ""
        return f"{self.count} {self.action}: {self.kind}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """Account of an import: rows read = used + skipped."""

    path: str
    format: str
    num_read: int
    num_used: int
    problems: tuple[RowProblem, ...] = ()
    """Every skipped row is in exactly one of those whose action is `dropped`."""
    notes: tuple[str, ...] = ()
    """What was done to all rows: sorted, scaled."""

    @property
    def num_skipped(self) -> int:
        return self.num_read - self.num_used

    def describe(self) -> list[str]:
        """One line of counts, one per kind of problem, one per note."""
        head = (
            f"{self.path} ({self.format}): {self.num_read} rows read, {self.num_used} used, {self.num_skipped} skipped"
        )
        return [head, *(problem.describe() for problem in self.problems), *self.notes]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTable:
    """Rows of a trace, all columns of length n (blocks apart)."""

    arrival_s: FloatArray
    """Seconds from the first row read."""
    input_tokens: IntArray
    output_tokens: IntArray
    lines: IntArray
    """Line of each row in the file, from 1."""
    block_tokens: int | None = None
    """Tokens per hash id, where the format has hash ids."""
    block_ids: IntArray | None = None
    block_offsets: IntArray | None = None
    """[n + 1] row i's ids are `block_ids[block_offsets[i] : block_offsets[i + 1]]`."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, rows: IntArray) -> TraceTable:
        """The given rows, in the given order."""
        columns = {name: getattr(self, name)[rows] for name in ("arrival_s", "input_tokens", "output_tokens", "lines")}
        if self.block_ids is None or self.block_offsets is None:
            return replace(self, **columns)
        starts, counts = self.block_offsets[:-1][rows], np.diff(self.block_offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        flat = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
        return replace(self, **columns, block_ids=self.block_ids[flat], block_offsets=offsets)


@dataclass(slots=True)
class Ledger:
    """Mutable account kept while rows are read and filtered."""

    num_read: int = 0
    _kinds: dict[tuple[str, str], tuple[int, list[int]]] = field(default_factory=dict)

    def add(self, kind: str, action: str, lines: IntArray | list[int]) -> None:
        """Note rows of one kind by their lines."""
        if len(lines) == 0:
            return
        count, first = self._kinds.get((kind, action), (0, []))
        first += [int(line) for line in lines[: _NUM_LINES_SHOWN - len(first)]] if len(first) < _NUM_LINES_SHOWN else []
        self._kinds[kind, action] = (count + len(lines), first)

    def problems(self) -> tuple[RowProblem, ...]:
        return tuple(
            RowProblem(kind=kind, action=action, count=count, lines=tuple(first))
            for (kind, action), (count, first) in self._kinds.items()
        )
