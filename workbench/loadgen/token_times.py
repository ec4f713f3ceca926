"""When each request's tokens came: listed by the client, or told by the steps that gave them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from workbench.metrics.records import FloatArray, IntArray


class TokenTimes(Protocol):
    """Of the rows of one workload; seconds from the start of the run."""

    def columns(self, rows: Sequence[int]) -> tuple[IntArray, FloatArray]:
        """Number of tokens of each of `rows`, and the times of all of them, row after row."""
        ...


class ListedTimes:
    """Every token's time, as an observer outside of the engine knows it."""

    def __init__(self, num_rows: int) -> None:
        self._times: list[Sequence[float]] = [()] * num_rows

    def set(self, row: int, times_s: Sequence[float]) -> None:
        self._times[row] = times_s

    def columns(self, rows: Sequence[int]) -> tuple[IntArray, FloatArray]:
        times = [self._times[row] for row in rows]
        counts = np.array([len(each) for each in times], dtype=np.int64)
        return counts, np.array([time for each in times for time in each], dtype=np.float64)


class StepRecorder(Protocol):
    """What the driver tells of an engine's steps."""

    step_end_s: array[float]
    """When each step's tokens were there; the driver appends."""

    def add(self, row: int, first_step: int, count: int) -> None:
        """One token from each of `count` steps from `first_step` on."""
        ...


class StepTimes:
    """Tokens by the steps that gave them, in which they share their time: two numbers for an undisturbed request."""

    def __init__(self, num_rows: int) -> None:
        self.step_end_s = array("d")
        """When each step's tokens were there."""
        self._first = [-1] * num_rows  # of the row's latest run of consecutive steps
        self._count = [0] * num_rows
        self._earlier: dict[int, list[tuple[int, int]]] = {}  # row -> runs before it

    def add(self, row: int, first_step: int, count: int) -> None:
        """One token from each of `count` steps from `first_step` on."""
        first, before = self._first[row], self._count[row]
        if before and first + before == first_step:
            self._count[row] = before + count
            return
        if before:
            self._earlier.setdefault(row, []).append((first, before))
        self._first[row], self._count[row] = first_step, count

    def num_tokens(self, row: int) -> int:
        """Tokens of a row so far."""
        return self._count[row] + sum(count for _, count in self._earlier.get(row, ()))

    def columns(self, rows: Sequence[int]) -> tuple[IntArray, FloatArray]:
        index = np.array(rows, dtype=np.int64)
        first, runs = np.array(self._first, dtype=np.int64)[index], np.array(self._count, dtype=np.int64)[index]
        counts = runs
        if self._earlier:
            segments = [[*self._earlier.get(row, ()), (self._first[row], self._count[row])] for row in rows]
            counts = np.array([sum(count for _, count in each) for each in segments], dtype=np.int64)
            first, runs = np.array([pair for each in segments for pair in each], dtype=np.int64).reshape(-1, 2).T
        ends = np.cumsum(runs)
        # Position i of the answer, in the run that ends at e with r steps from f on, is step f + i - (e - r).
        steps = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - runs), runs)
        return counts, self._at(steps)

    def _at(self, steps: IntArray) -> FloatArray:
        return np.array(self.step_end_s, dtype=np.float64)[steps]
