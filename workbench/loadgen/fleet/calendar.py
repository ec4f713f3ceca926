"""What is going to happen to a fleet, by the time at which it does."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

Action = Callable[[float], None]
"""Called with the time at which it happens."""


class Calendar:
    """Entries of equal time happen in the order in which they were made."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Action]] = []
        self._num_made = 0

    def add(self, when_s: float, action: Action) -> None:
        self._num_made += 1
        heapq.heappush(self._entries, (when_s, self._num_made, action))

    def next_s(self) -> float:
        """Time of the next entry; infinite where there is none."""
        return self._entries[0][0] if self._entries else math.inf

    def happen(self) -> None:
        """Take the next entry out and do what it says."""
        when_s, _, action = heapq.heappop(self._entries)
        action(when_s)
