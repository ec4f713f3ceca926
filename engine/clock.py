"""Time as a value that is passed in: wall clock for real runs, virtual clock for simulated ones."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds on one monotonic axis; the zero point means nothing."""

    def now(self) -> float:
        """Seconds since an arbitrary zero; never decreases."""
        ...

    def sleep_until(self, when_s: float) -> None:
        """Return once `now() >= when_s`; at once if that is already so."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep_until(self, when_s: float) -> None:
        # time.sleep may wake late but never early on CPython >= 3.5, so one call is enough.
        remaining = when_s - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)


class VirtualClock:
    """A clock that moves only when its owner advances it; runs on it are exact and repeatable."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def sleep_until(self, when_s: float) -> None:
        self._now_s = max(self._now_s, when_s)

    def advance(self, duration_s: float) -> None:
        """Move forward by `duration_s` >= 0 seconds."""
        if not duration_s >= 0.0:
            raise ValueError(f"a clock cannot move by {duration_s} s: durations are >= 0")
        self._now_s += duration_s
