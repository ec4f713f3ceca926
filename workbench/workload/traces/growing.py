"""Columns that grow while a file is read, without ever being held twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_FIRST_CAPACITY = 1 << 16
_SMALL_BYTES = 16 << 20


class Growing:
    """One column. `numpy.ndarray.resize` moves the pages of a large array instead of copying it, so that the peak is
    the column itself; a list of pieces would be held twice while they are joined. New room is filled with zeros, so
    a large column grows by little at a time."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._data: npt.NDArray[Any] = np.empty(_FIRST_CAPACITY, dtype=dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, values: npt.NDArray[Any]) -> None:
        """Append values; those that do not fit the column's type must have been refused before."""
        needed = self._length + len(values)
        if needed > len(self._data):
            more = len(self._data) // (1 if self._data.nbytes < _SMALL_BYTES else 8)
            self._data.resize(max(needed, len(self._data) + more), refcheck=False)
        self._data[self._length : needed] = values
        self._length = needed

    def last(self) -> Any:
        """The value appended last; there must be one."""
        return self._data[self._length - 1]

    def finish(self, length: int) -> npt.NDArray[Any]:
        """The first `length` values; nothing may be appended afterwards."""
        self._data.resize(length, refcheck=False)
        return self._data
