"""Waiting queues: the order in which requests are admitted and, in reverse, who is preempted.

A queue is the scheduling policy: `fcfs` or `priority` (lower numbers first). The scheduler only looks at the head.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from engine.config import SchedulingPolicy
from engine.request import Request


class RequestQueue(Protocol):
    """What the scheduler needs to know of a policy."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """In the order of admission."""
        ...

    def add(self, request: Request) -> None: ...

    def add_preempted(self, request: Request) -> None: ...

    def head(self) -> Request:
        """The next to be admitted; the queue is not empty."""
        ...

    def pop(self) -> Request: ...

    def remove(self, request: Request) -> None: ...

    def victim_index(self, running: Sequence[Request]) -> int:
        """Position in `running` of the request to preempt."""
        ...


class FcfsQueue:
    """First come, first served; a preempted request goes back to the front; the last admitted is preempted first."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def add_preempted(self, request: Request) -> None:
        self._requests.appendleft(request)

    def head(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def victim_index(self, running: Sequence[Request]) -> int:
        return len(running) - 1


class PriorityQueue:
    """Lowest (priority, arrival time, id) first; the highest (priority, arrival time) is preempted first."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, str], Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter([request for _, request in sorted(self._heap, key=lambda entry: entry[0])])

    def add(self, request: Request) -> None:
        key = (request.priority, request.arrival_time_s, request.request_id)
        heapq.heappush(self._heap, (key, request))

    def add_preempted(self, request: Request) -> None:
        self.add(request)

    def head(self) -> Request:
        return self._heap[0][1]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[1]

    def remove(self, request: Request) -> None:
        self._heap = [entry for entry in self._heap if entry[1] is not request]
        heapq.heapify(self._heap)

    def victim_index(self, running: Sequence[Request]) -> int:
        # max() keeps the first of equals, as vLLM's does.
        return max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrival_time_s))


QUEUES: dict[SchedulingPolicy, type[FcfsQueue] | type[PriorityQueue]] = {"fcfs": FcfsQueue, "priority": PriorityQueue}
