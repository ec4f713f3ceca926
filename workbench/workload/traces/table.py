"""What an importer gives: columns, and an account of every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from workbench.workload.account import ImportAccount

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
ShortArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

MAX_TOKENS = 1_000_000_000
"""Longer is no length; the sum of two still fits 32 bits."""
MAX_TIME_S = 1e12
"""Later (or earlier, negated) is no time; over thirty thousand years."""

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

    @property
    def account(self) -> ImportAccount:
        """Return the rows by what became of them."""
        return account_of(self.num_read, self.num_used, self.problems)

    def describe(self) -> list[str]:
        """One line of counts, one per kind of problem, one per note."""
        head = (
            f"{self.path} ({self.format}): {self.num_read} rows read, {self.num_used} used, {self.num_skipped} skipped"
        )
        return [head, *(problem.describe() for problem in self.problems), *self.notes]


def account_of(num_read: int, num_used: int, problems: Sequence[RowProblem]) -> ImportAccount:
    """Count the skipped rows by reason; what is left are conversations of which every request was left out."""
    skipped = {problem.kind: problem.count for problem in problems if problem.action == "dropped"}
    rest = num_read - num_used - sum(skipped.values())
    if rest:
        skipped["no request that can be used"] = rest
    return ImportAccount(read=num_read, used=num_used, skipped=skipped)


@dataclass(frozen=True, slots=True)
class LineRange:
    """Lines that follow one another: takes no memory, and is indexed like the array it stands for."""

    first: int
    count: int

    def __getitem__(self, key: npt.NDArray[Any]) -> ShortArray:
        rows = np.flatnonzero(key) if key.dtype == np.bool_ else key
        return (rows + self.first).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpans:
    """Real prompts: row i is `ids[starts[i] : ends[i]]`; turns of one conversation overlap."""

    ids: ShortArray
    starts: IntArray
    ends: IntArray
    tokenizer: str
    """What made the ids: the name of a tokenizer, or `bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTable:
    """Requests of a trace, all columns of length n (blocks apart). Narrow types: millions of rows are kept."""

    arrival_s: FloatArray
    """Seconds from the first row read; 0 where the format has no times."""
    input_tokens: ShortArray
    output_tokens: ShortArray
    lines: ShortArray | LineRange
    """Line of each row in the file, from 1."""
    has_times: bool = True
    rows_are: Literal["requests", "conversations"] = "requests"
    """What the account counts; a conversation gives several requests."""
    failed: BoolArray | None = None
    """The recorded request failed; None where the format does not say."""
    session_index: ShortArray | None = None
    """Requests of one conversation share it; -1 = alone."""
    turn: ShortArray | None = None
    """Position in the conversation, from 0."""
    tokens: TokenSpans | None = None
    """Where the format has text."""
    block_tokens: int | None = None
    """Tokens per hash id, where the format has hash ids."""
    block_ids: IntArray | None = None
    block_offsets: IntArray | None = None
    """[n + 1] row i's ids are `block_ids[block_offsets[i] : block_offsets[i + 1]]`."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, rows: IntArray) -> TraceTable:
        """The given rows, in the given order."""
        names = ("arrival_s", "input_tokens", "output_tokens", "lines", "failed", "session_index", "turn")
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in names if getattr(self, name) is not None}
        if self.tokens is not None:
            spans = self.tokens
            columns["tokens"] = replace(spans, starts=spans.starts[rows], ends=spans.ends[rows])
        if self.block_ids is None or self.block_offsets is None:
            return replace(self, **columns)
        starts, counts = self.block_offsets[:-1][rows], np.diff(self.block_offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        flat = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
        return replace(self, **columns, block_ids=self.block_ids[flat], block_offsets=offsets)

    def num_rows(self, keep: BoolArray | None = None) -> int:
        """Rows of the file that these requests (or those in `keep`) came from."""
        if self.rows_are == "requests" or self.session_index is None:
            return len(self) if keep is None else int(np.count_nonzero(keep))
        return len(np.unique(self.session_index if keep is None else self.session_index[keep]))


@dataclass(slots=True)
class Ledger:
    """Mutable account kept while rows are read and filtered."""

    num_read: int = 0
    notes: list[str] = field(default_factory=list)
    _kinds: dict[tuple[str, str], tuple[int, list[int]]] = field(default_factory=dict)

    def add(self, kind: str, action: str, lines: npt.NDArray[Any] | list[int]) -> None:
        """Note rows of one kind by their lines."""
        if len(lines) == 0:
            return
        count, first = self._kinds.get((kind, action), (0, []))
        first += [int(line) for line in lines[: _NUM_LINES_SHOWN - len(first)]] if len(first) < _NUM_LINES_SHOWN else []
        self._kinds[kind, action] = (count + len(lines), first)

    def note(self, text: str) -> None:
        """Something that holds for all rows; said once."""
        if text not in self.notes:
            self.notes.append(text)

    def copy(self) -> Ledger:
        """An account to go on with, apart from this one."""
        kinds = {key: (count, list(first)) for key, (count, first) in self._kinds.items()}
        return Ledger(num_read=self.num_read, notes=list(self.notes), _kinds=kinds)

    def problems(self) -> tuple[RowProblem, ...]:
        return tuple(
            RowProblem(kind=kind, action=action, count=count, lines=tuple(first))
            for (kind, action), (count, first) in self._kinds.items()
        )
