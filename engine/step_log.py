"""Every executed step, columnar: 96 bytes a step instead of an object, and whole columns without a loop.

Owner: the engine core, which appends. Whoever reads the log may clear it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from engine.stats import AdmissionStop, StepStats

INT_COLUMNS = (
    "step_index",
    "num_running",
    "num_waiting",
    "num_scheduled_requests",
    "num_scheduled_tokens",
    "num_prefill_tokens",
    "num_blocks_in_use",
    "num_free_blocks",
    "num_preempted",
    "num_recomputed_tokens",
    "num_kv_tokens",
)
"""Whole-number columns of `StepStats`, in the order in which `append` takes them."""
STOPS = tuple(AdmissionStop)
_STOP_CODES = {stop: code for code, stop in enumerate(STOPS)}
_WIDTH = len(INT_COLUMNS) + 1


def stop_code(stop: AdmissionStop) -> int:
    """How the log stores it."""
    return _STOP_CODES[stop]


class StepLog(Sequence[StepStats]):
    """Reads as a sequence of `StepStats`."""

    __slots__ = ("_ints", "_times")

    def __init__(self) -> None:
        self._times = array("d")  # start and end of each step
        self._ints = array("q")  # [num_steps, _WIDTH]: INT_COLUMNS and the code of the admission stop

    def append(self, start_s: float, end_s: float, ints: Iterable[int]) -> None:
        """One step; `ints` are the values of `INT_COLUMNS` and the `stop_code`."""
        self._times.append(start_s)
        self._times.append(end_s)
        self._ints.extend(ints)

    def extend(self, times_s: npt.NDArray[np.float64], ints: npt.NDArray[np.int64]) -> None:
        """Many steps at once: [num_steps, 2] start and end, [num_steps, 12] as in `append`."""
        self._times.frombytes(np.ascontiguousarray(times_s).tobytes())
        self._ints.frombytes(np.ascontiguousarray(ints).tobytes())

    def add(self, stats: StepStats) -> None:
        """One step as a record."""
        self.append(
            stats.start_s,
            stats.end_s,
            (*[getattr(stats, name) for name in INT_COLUMNS], stop_code(stats.admission_stop)),
        )

    def clear(self) -> None:
        del self._times[:], self._ints[:]

    def end_s(self, row: int) -> float:
        """End of the step in a row."""
        return self._times[2 * row + 1]

    def last_num_waiting(self) -> int:
        """Requests that waited after the last step was planned."""
        return self._ints[2 - _WIDTH]

    def times_s(self) -> npt.NDArray[np.float64]:
        """[num_steps, 2] start and end, copied."""
        return np.array(self._times, dtype=np.float64).reshape(-1, 2)

    def columns(self) -> dict[str, npt.NDArray[np.int64]]:
        """Column -> [num_steps], copied; `admission_stop` holds indices of `STOPS`."""
        table = np.array(self._ints, dtype=np.int64).reshape(-1, _WIDTH)
        return {name: table[:, i].copy() for i, name in enumerate((*INT_COLUMNS, "admission_stop"))}

    def __len__(self) -> int:
        return len(self._times) // 2

    @overload
    def __getitem__(self, index: int) -> StepStats: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepStats]: ...
    def __getitem__(self, index: int | slice) -> StepStats | list[StepStats]:
        if isinstance(index, slice):
            return [self._row(i) for i in range(*index.indices(len(self)))]
        return self._row(range(len(self))[index])

    def __iter__(self) -> Iterator[StepStats]:
        return map(self._row, range(len(self)))

    def _row(self, i: int) -> StepStats:
        *ints, stop = self._ints[i * _WIDTH : (i + 1) * _WIDTH]
        return StepStats(
            start_s=self._times[2 * i],
            end_s=self._times[2 * i + 1],
            admission_stop=STOPS[stop],
            **dict(zip(INT_COLUMNS, ints, strict=True)),
        )
