"""Arrivals + classes -> columns. Each class draws from streams of its own name, so that classes do not disturb
each other and their order in the file does not matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from workbench.scenario.arrivals import OverLong
from workbench.scenario.classes import RequestClass
from workbench.workload.class_rows import ClampCounts, ClassRows, ClassRowsBuilder
from workbench.workload.randomness import stream
from workbench.workload.traces.table import TraceTable

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One row per request, ascending by arrival."""

    class_names: tuple[str, ...]
    class_index: IntArray
    index_in_class: IntArray
    """Which arrival of its class; the turns of a conversation share it."""
    arrival_s: FloatArray
    """Of a later turn: the earliest possible, with answers that take no time."""
    num_prompt_tokens: IntArray
    max_output_tokens: IntArray
    priority: IntArray
    num_prefix_tokens: IntArray
    prefix_group: IntArray
    num_header_tokens: IntArray
    turn: IntArray
    session_index: IntArray
    """-1 = alone."""
    think_time_s: FloatArray
    """After the previous turn's answer."""
    file_row: IntArray
    """Row of the class's file; -1 without one."""
    clamps: dict[str, ClampCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsBuilder:
    """Draws the columns."""

    seed: int
    classes: Sequence[RequestClass]
    """In alphabetical order."""
    max_model_len: int | None
    over_long: OverLong
    files: Mapping[str, TraceTable]
    """Class name -> its file."""

    def from_trace(self, name: str, table: TraceTable) -> Columns:
        """A trace's own rows, as one class; recorded times stand, whatever the answers take."""
        count = len(table)
        nothing = np.zeros(count, dtype=np.int64)
        sessions = nothing - 1 if table.session_index is None else table.session_index.astype(np.int64)
        return Columns(
            class_names=(name,),
            class_index=nothing,
            index_in_class=np.arange(count, dtype=np.int64),
            arrival_s=table.arrival_s,
            num_prompt_tokens=table.input_tokens.astype(np.int64),
            max_output_tokens=table.output_tokens.astype(np.int64),
            priority=nothing,
            num_prefix_tokens=nothing,
            prefix_group=nothing - 1,
            num_header_tokens=nothing,
            turn=nothing if table.turn is None else table.turn.astype(np.int64),
            session_index=sessions,
            think_time_s=np.zeros(count),
            file_row=np.arange(count, dtype=np.int64),
        )

    def from_classes(self, common_s: FloatArray | None, own_s: Mapping[str, FloatArray]) -> Columns:
        """Give each common arrival a class, and the k-th arrival of a class that class's k-th draws; `own_s` are the
        arrivals of the classes with a process of their own."""
        pieces: list[ClassRows] = []
        clamps: dict[str, ClampCounts] = {}
        owners: list[IntArray] = []
        places: list[IntArray] = []
        class_index = None if common_s is None else self._assign(len(common_s))
        for number, kind in enumerate(self.classes):
            if class_index is None or common_s is None or kind.arrivals is not None:
                arrival_s = own_s[kind.name]
                place = np.arange(len(arrival_s), dtype=np.int64)
            else:
                place = np.flatnonzero(class_index == number)
                arrival_s = common_s[place]
            builder = ClassRowsBuilder(
                seed=self.seed,
                kind=kind,
                table=self.files.get(kind.name),
                max_model_len=self.max_model_len,
                over_long=self.over_long,
            )
            rows, clamps[kind.name] = builder.build(arrival_s)
            pieces.append(rows)
            owners.append(np.full(len(rows.arrival_s), number, dtype=np.int64))
            places.append(place[rows.index_in_class])
        owner, place = np.concatenate(owners), np.concatenate(places)
        joined = {
            column.name: np.concatenate([getattr(piece, column.name) for piece in pieces])
            for column in fields(ClassRows)
        }
        # Ties keep the order in which the arrivals were drawn.
        order = np.lexsort((joined["turn"], owner, place, joined["arrival_s"]))
        columns = {name: values[order] for name, values in joined.items()}
        owner = owner[order]
        return Columns(
            class_names=tuple(kind.name for kind in self.classes),
            class_index=owner,
            priority=np.array([kind.priority for kind in self.classes], dtype=np.int64)[owner],
            session_index=_session_numbers(owner, columns["index_in_class"], columns.pop("in_session")),
            clamps=clamps,
            **columns,
        )

    def _assign(self, count: int) -> IntArray:
        """Class of each common arrival."""
        shared = [kind for kind in self.classes if kind.arrivals is None]
        return self._interleaved() if shared[0].count is not None else self._weighted(count)

    def _weighted(self, count: int) -> IntArray:
        """An exponential race per arrival: P(class) = weight / sum, and a new class only takes arrivals away."""
        best = np.full(count, np.inf)
        winner = np.zeros(count, dtype=np.int64)
        for number, kind in enumerate(self.classes):
            weight = 1.0 if kind.weight is None else kind.weight
            if weight == 0 or kind.arrivals is not None:
                continue
            finish = stream(self.seed, "class", kind.name).exponential(size=count) / weight
            winner[finish < best] = number
            best = np.minimum(best, finish)
        return winner

    def _interleaved(self) -> IntArray:
        """Exact counts in random order; a new class does not change the order of the others among themselves."""
        counts = [kind.count or 0 if kind.arrivals is None else 0 for kind in self.classes]
        places = [
            stream(self.seed, "class", kind.name).random(count)
            for kind, count in zip(self.classes, counts, strict=True)
        ]
        owner = np.repeat(np.arange(len(self.classes)), counts)
        return owner[np.argsort(np.concatenate(places), kind="stable")].astype(np.int64)


def _session_numbers(owner: IntArray, index_in_class: IntArray, in_session: npt.NDArray[np.bool_]) -> IntArray:
    """A number per conversation in order of its first turn; -1 for requests alone."""
    numbers = np.full(len(owner), -1, dtype=np.int64)
    rows = np.flatnonzero(in_session)
    if len(rows) == 0:
        return numbers
    keys = np.stack([owner[rows], index_in_class[rows]], axis=1)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first, kind="stable"), kind="stable")
    numbers[rows] = rank[inverse.reshape(-1)]
    return numbers
