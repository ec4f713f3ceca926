"""Arrivals + classes -> columns. Each class draws from streams of its own name, so that classes do not disturb
each other and their order in the file does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from workbench.scenario.arrivals import OverLong
from workbench.scenario.errors import ScenarioError
from workbench.scenario.schema import RequestClass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One row per request, ascending by arrival."""

    class_names: tuple[str, ...]
    class_index: IntArray
    index_in_class: IntArray
    arrival_s: FloatArray
    num_prompt_tokens: IntArray
    max_output_tokens: IntArray
    priority: IntArray
    num_prefix_tokens: IntArray
    prefix_group: IntArray
    clamps: dict[str, ClampCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassColumns:
    prompt: IntArray
    output: IntArray
    group: IntArray
    keep: BoolArray
    clamps: ClampCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsBuilder:
    """Draws the columns."""

    seed: int
    classes: Sequence[RequestClass]
    """In alphabetical order."""
    max_model_len: int | None
    over_long: OverLong

    def from_trace(self, name: str, table: TraceTable) -> Columns:
        """A trace's own rows, as one class."""
        count = len(table)
        nothing = np.zeros(count, dtype=np.int64)
        return Columns(
            class_names=(name,),
            class_index=nothing,
            index_in_class=np.arange(count, dtype=np.int64),
            arrival_s=table.arrival_s,
            num_prompt_tokens=table.input_tokens,
            max_output_tokens=table.output_tokens,
            priority=nothing,
            num_prefix_tokens=nothing,
            prefix_group=nothing - 1,
        )

    def from_classes(self, arrival_s: FloatArray) -> Columns:
        """Give each arrival a class, and the k-th arrival of a class that class's k-th lengths."""
        class_index, index_in_class = self._assign(len(arrival_s))
        shape = len(arrival_s)
        prompt, output, priority, prefix = (np.zeros(shape, dtype=np.int64) for _ in range(4))
        group = np.full(shape, -1, dtype=np.int64)
        keep = np.ones(shape, dtype=np.bool_)
        clamps: dict[str, ClampCounts] = {}
        for number, kind in enumerate(self.classes):
            rows = np.flatnonzero(class_index == number)
            drawn = self._draw(kind, len(rows))
            prompt[rows], output[rows], group[rows], keep[rows] = drawn.prompt, drawn.output, drawn.group, drawn.keep
            priority[rows] = kind.priority
            prefix[rows] = kind.shared_prefix.tokens if kind.shared_prefix else 0
            clamps[kind.name] = drawn.clamps
        return Columns(
            class_names=tuple(kind.name for kind in self.classes),
            class_index=class_index[keep],
            index_in_class=index_in_class[keep],
            arrival_s=arrival_s[keep],
            num_prompt_tokens=prompt[keep],
            max_output_tokens=output[keep],
            priority=priority[keep],
            num_prefix_tokens=prefix[keep],
            prefix_group=group[keep],
            clamps=clamps,
        )

    def _assign(self, count: int) -> tuple[IntArray, IntArray]:
        """(class of each arrival, how many of that class came before)."""
        class_index = self._interleaved() if self.classes[0].count is not None else self._weighted(count)
        index_in_class = np.zeros(count, dtype=np.int64)
        for number in range(len(self.classes)):
            rows = np.flatnonzero(class_index == number)
            index_in_class[rows] = np.arange(len(rows))
        return class_index, index_in_class

    def _weighted(self, count: int) -> IntArray:
        """An exponential race per arrival: P(class) = weight / sum, and a new class only takes arrivals away."""
        best = np.full(count, np.inf)
        winner = np.zeros(count, dtype=np.int64)
        for number, kind in enumerate(self.classes):
            weight = 1.0 if kind.weight is None else kind.weight
            if weight == 0:
                continue
            finish = stream(self.seed, "class", kind.name).exponential(size=count) / weight
            winner[finish < best] = number
            best = np.minimum(best, finish)
        return winner

    def _interleaved(self) -> IntArray:
        """Exact counts in random order; a new class does not change the order of the others among themselves."""
        places = [stream(self.seed, "class", kind.name).random(kind.count or 0) for kind in self.classes]
        owner = np.repeat(np.arange(len(self.classes)), [len(place) for place in places])
        return owner[np.argsort(np.concatenate(places), kind="stable")].astype(np.int64)

    def _draw(self, kind: RequestClass, count: int) -> _ClassColumns:
        inputs = draw_lengths(kind.input_tokens, count, stream(self.seed, "input", kind.name))
        outputs = draw_lengths(kind.output_tokens, count, stream(self.seed, "output", kind.name))
        shared = kind.shared_prefix
        group = np.full(count, -1, dtype=np.int64)
        if shared is not None:
            rng = stream(self.seed, "group", kind.name)
            group = choose_group(shared.groups, shared.zipf_exponent, count, rng)
        prefix = shared.tokens if shared else 0
        prompt, output = inputs.tokens + prefix, outputs.tokens
        keep = np.ones(count, dtype=np.bool_)
        over = prompt + output > self.max_model_len if self.max_model_len is not None else ~keep
        num_over = int(np.count_nonzero(over))
        if num_over and self.over_long == "fail":
            worst = int(np.argmax(prompt + output))
            raise ScenarioError(
                f"workload.classes: class {kind.name!r}: {num_over} of {count} requests are over max_model_len "
                f"(got up to {prompt[worst]} prompt + {output[worst]} output tokens > {self.max_model_len}). "
                "Give the lengths a max, or set workload.over_long to drop or clip"
            )
        if num_over and self.over_long == "drop":
            keep = ~over
        elif num_over:
            assert self.max_model_len is not None
            output = np.minimum(output, max(1, self.max_model_len - prefix - 1))
            prompt = np.minimum(prompt, self.max_model_len - output)
        return _ClassColumns(
            prompt=prompt,
            output=output,
            group=group,
            keep=keep,
            clamps=ClampCounts(
                num_raised=inputs.num_raised + outputs.num_raised,
                num_lowered=inputs.num_lowered + outputs.num_lowered,
                num_clipped=num_over if self.over_long == "clip" else 0,
                num_dropped=num_over if self.over_long == "drop" else 0,
            ),
        )
