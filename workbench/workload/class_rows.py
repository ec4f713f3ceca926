"""One class: arrivals -> requests with their lengths, prefixes and turns."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from workbench.scenario.arrivals import OverLong
from workbench.scenario.classes import RequestClass
from workbench.scenario.errors import ScenarioError
from workbench.workload.lengths import choose_group, draw_lengths
from workbench.workload.randomness import stream
from workbench.workload.traces.table import TraceTable

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampCounts:
    """What bounds did to one class's draws."""

    num_raised: int = 0
    num_lowered: int = 0
    num_clipped: int = 0
    num_dropped: int = 0
    num_rows_dropped: int = 0
    """Rows of the class's file that none of its requests could come from: they are over the model's window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRows:
    """Requests of one class, conversation after conversation."""

    index_in_class: IntArray
    turn: IntArray
    in_session: BoolArray
    arrival_s: FloatArray
    think_time_s: FloatArray
    num_prompt_tokens: IntArray
    max_output_tokens: IntArray
    num_prefix_tokens: IntArray
    prefix_group: IntArray
    num_header_tokens: IntArray
    file_row: IntArray

    def take(self, keep: BoolArray) -> ClassRows:
        return ClassRows(**{column.name: getattr(self, column.name)[keep] for column in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRowsBuilder:
    """Draws the requests of one class."""

    seed: int
    kind: RequestClass
    table: TraceTable | None
    """The class's file."""
    max_model_len: int | None
    over_long: OverLong

    def build(self, arrival_s: FloatArray) -> tuple[ClassRows, ClampCounts]:
        """Raises `ScenarioError` for requests over the model's window where the policy says `fail`."""
        rows, num_raised, num_lowered = (
            self._from_lengths(arrival_s) if self.table is None else self._from_file(arrival_s)
        )
        drawn = rows
        rows, num_over = self._within_model(rows)
        return rows, ClampCounts(
            num_raised=num_raised,
            num_lowered=num_lowered,
            num_clipped=num_over if self.over_long == "clip" else 0,
            num_dropped=num_over if self.over_long == "drop" else 0,
            num_rows_dropped=self._num_file_rows(drawn) - self._num_file_rows(rows),
        )

    def _num_file_rows(self, rows: ClassRows) -> int:
        """Rows (or conversations) of the file that these requests came from."""
        if self.table is None:
            return 0
        drawn = np.zeros(len(self.table), dtype=np.bool_)
        drawn[rows.file_row] = True
        return self.table.num_rows(drawn)

    def _from_lengths(self, arrival_s: FloatArray) -> tuple[ClassRows, int, int]:
        kind, seed = self.kind, self.seed
        assert kind.input_tokens is not None
        assert kind.output_tokens is not None
        turns = np.ones(len(arrival_s), dtype=np.int64)
        if kind.conversation is not None:
            assert kind.conversation.turns is not None
            turns = draw_lengths(kind.conversation.turns, len(arrival_s), stream(seed, "turns", kind.name)).tokens
            if int(turns.sum()) > 50_000_000:
                raise ScenarioError(f"workload.classes: class {kind.name!r}: over 50000000 turns. Lower turns")
        number, turn = _spread(turns)
        inputs = draw_lengths(kind.input_tokens, len(number), stream(seed, "input", kind.name))
        outputs = draw_lengths(kind.output_tokens, len(number), stream(seed, "output", kind.name))
        history = _history(inputs.tokens, outputs.tokens, turn)
        shared = kind.shared_prefix
        group = np.full(len(arrival_s), -1, dtype=np.int64)
        if shared is not None:
            group = choose_group(shared.groups, shared.zipf_exponent, len(arrival_s), stream(seed, "group", kind.name))
        nothing = np.zeros(len(number), dtype=np.int64)
        rows = ClassRows(
            index_in_class=number,
            turn=turn,
            in_session=np.full(len(number), kind.conversation is not None),
            arrival_s=self._turn_times(arrival_s[number], turn),
            think_time_s=self._think_times(len(number)),
            num_prompt_tokens=inputs.tokens + history + kind.prefix_tokens,
            max_output_tokens=outputs.tokens,
            num_prefix_tokens=nothing + (shared.tokens if shared else 0),
            prefix_group=group[number],
            num_header_tokens=nothing + (shared.num_header_tokens if shared else 0),
            file_row=nothing - 1,
        )
        return rows, inputs.num_raised + outputs.num_raised, inputs.num_lowered + outputs.num_lowered

    def _from_file(self, arrival_s: FloatArray) -> tuple[ClassRows, int, int]:
        table, kind = self.table, self.kind
        assert table is not None
        assert kind.file is not None
        starts, lengths = _units(table, kind.conversation is not None)
        if kind.file.order == "random":
            unit = stream(self.seed, "file", kind.name).integers(0, len(starts), size=len(arrival_s))
        else:
            unit = np.arange(len(arrival_s)) % len(starts)
        number, turn = _spread(lengths[unit])
        row = starts[unit][number] + turn
        nothing = np.zeros(len(number), dtype=np.int64)
        rows = ClassRows(
            index_in_class=number,
            turn=turn,
            in_session=np.full(len(number), kind.conversation is not None),
            arrival_s=self._turn_times(arrival_s[number], turn),
            think_time_s=self._think_times(len(number)),
            num_prompt_tokens=table.input_tokens[row].astype(np.int64),
            max_output_tokens=table.output_tokens[row].astype(np.int64),
            num_prefix_tokens=nothing,
            prefix_group=nothing - 1,
            num_header_tokens=nothing,
            file_row=row,
        )
        return rows, 0, 0

    def _think_times(self, count: int) -> FloatArray:
        return np.full(count, 0.0 if self.kind.conversation is None else self.kind.conversation.think_time)

    def _turn_times(self, begin_s: FloatArray, turn: IntArray) -> FloatArray:
        think_time_s = 0.0 if self.kind.conversation is None else self.kind.conversation.think_time
        return begin_s + turn * think_time_s if think_time_s else begin_s

    def _within_model(self, rows: ClassRows) -> tuple[ClassRows, int]:
        """The requests that fit, and how many did not."""
        limit = self.max_model_len
        prompt, output = rows.num_prompt_tokens, rows.max_output_tokens
        over = prompt + output > limit if limit is not None else np.zeros(len(prompt), dtype=np.bool_)
        num_over = int(np.count_nonzero(over))
        if num_over == 0 or limit is None:
            return rows, 0
        if self.over_long == "fail":
            worst = int(np.argmax(prompt + output))
            raise ScenarioError(
                f"workload.classes: class {self.kind.name!r}: {num_over} of {len(prompt)} requests are over "
                f"max_model_len (got up to {prompt[worst]} prompt + {output[worst]} output tokens > {limit}). "
                "Give the lengths a max, or set workload.over_long to drop or clip"
            )
        if self.over_long == "drop":
            return rows.take(~over), num_over
        output[:] = np.minimum(output, max(1, limit - self.kind.prefix_tokens - 1))
        prompt[:] = np.minimum(prompt, limit - output)
        return rows, num_over


def _spread(turns: IntArray) -> tuple[IntArray, IntArray]:
    """(which arrival, which turn of it) for each request."""
    number = np.repeat(np.arange(len(turns), dtype=np.int64), turns)
    first = np.cumsum(turns) - turns
    return number, np.arange(len(number), dtype=np.int64) - first[number]


def _history(inputs: IntArray, outputs: IntArray, turn: IntArray) -> IntArray:
    """Tokens of the conversation before each turn: all earlier inputs and answers."""
    before = np.cumsum(inputs + outputs) - inputs - outputs
    first = np.flatnonzero(turn == 0)
    owner = np.cumsum(turn == 0) - 1
    return before - before[first][owner] if len(first) else before


def _units(table: TraceTable, by_conversation: bool) -> tuple[IntArray, IntArray]:
    """(first row, number of rows) of what one arrival takes from a file: a request, or a conversation."""
    count = len(table)
    if not by_conversation or table.session_index is None:
        return np.arange(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    changes = np.flatnonzero((np.diff(table.session_index) != 0) | (table.session_index[1:] < 0)) + 1
    starts = np.concatenate([[0], changes]).astype(np.int64)
    return starts, np.diff(np.append(starts, count))
