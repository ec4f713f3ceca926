"""When the next request is due: open loop by arrival times, closed loop by completions."""

from __future__ import annotations

import heapq
from typing import Protocol

from workbench.workload.records import ClosedLoopPacing, TurnPacing, Workload


class Pacing(Protocol):
    """Gives out the rows of a workload in order, with their intended arrivals (seconds from the start of the run)."""

    def next_due_s(self) -> float | None:
        """Intended arrival of the next request; None while that depends on a completion, or when all are out."""
        ...

    def take(self) -> tuple[int, float]:
        """(row, intended arrival) of the next request; only after `next_due_s()` gave a time."""
        ...

    def ended(self, when_s: float, row: int) -> None:
        """The request of `row` ended: completed, failed or refused."""
        ...

    @property
    def num_left(self) -> int:
        """Rows not taken yet."""
        ...


class OpenLoop:
    """Arrivals ignore completions."""

    def __init__(self, workload: Workload) -> None:
        self._arrivals: list[float] = workload.arrival_s.tolist()
        self._next = 0

    def next_due_s(self) -> float | None:
        return self._arrivals[self._next] if self._next < len(self._arrivals) else None

    def take(self) -> tuple[int, float]:
        row = self._next
        self._next += 1
        return row, self._arrivals[row]

    def ended(self, when_s: float, row: int) -> None:
        pass

    @property
    def num_left(self) -> int:
        return len(self._arrivals) - self._next


class ClosedLoop:
    """A fixed number of users; each decides to send when its last request has ended and it has thought."""

    def __init__(self, workload: Workload, pacing: ClosedLoopPacing) -> None:
        self._num_requests = len(workload)
        self._think_time_s = pacing.think_time_s
        self._ready_s = [0.0] * min(pacing.concurrency, len(workload))  # heap: times at which idle users send
        self._next = 0

    def next_due_s(self) -> float | None:
        return self._ready_s[0] if self._ready_s and self._next < self._num_requests else None

    def take(self) -> tuple[int, float]:
        row = self._next
        self._next += 1
        return row, heapq.heappop(self._ready_s)

    def ended(self, when_s: float, row: int) -> None:
        heapq.heappush(self._ready_s, when_s + self._think_time_s)

    @property
    def num_left(self) -> int:
        return self._num_requests - self._next


class Turns:
    """Conversations begin by arrival times; each later turn is due when the turn before has ended and its user has
    thought, however that turn ended."""

    def __init__(self, workload: Workload, pacing: TurnPacing) -> None:
        self._num_left = len(workload)
        self._think_time_s: list[float] = pacing.think_time_s.tolist()
        previous: list[int] = pacing.previous_row.tolist()
        self._next_turn = {before: row for row, before in enumerate(previous) if before >= 0}
        arrivals: list[float] = workload.arrival_s.tolist()
        self._due = [(arrivals[row], row) for row, before in enumerate(previous) if before < 0]  # heap
        heapq.heapify(self._due)

    def next_due_s(self) -> float | None:
        return self._due[0][0] if self._due else None

    def take(self) -> tuple[int, float]:
        due_s, row = heapq.heappop(self._due)
        self._num_left -= 1
        return row, due_s

    def ended(self, when_s: float, row: int) -> None:
        following = self._next_turn.get(row)
        if following is not None:
            heapq.heappush(self._due, (when_s + self._think_time_s[following], following))

    @property
    def num_left(self) -> int:
        return self._num_left


def pacing_of(workload: Workload) -> Pacing:
    """The pacing that the workload asks for."""
    if workload.turn_pacing is not None:
        return Turns(workload, workload.turn_pacing)
    return OpenLoop(workload) if workload.closed_loop is None else ClosedLoop(workload, workload.closed_loop)
