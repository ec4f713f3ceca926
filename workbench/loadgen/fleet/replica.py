"""One engine of a fleet: its own clock, its own queue, and what the router sees of it."""

from __future__ import annotations

import heapq
import math

from engine.simulation import Simulation
from workbench.loadgen.driver import Run
from workbench.loadgen.simulated import FrontEnd
from workbench.workload.records import Workload


class Ends:
    """The pacing of a replica: nothing is due by itself; ends are kept for the fleet."""

    num_left = 0

    def __init__(self) -> None:
        self.ended_rows: list[tuple[float, int]] = []
        """(time, row) not yet told to the fleet."""

    def next_due_s(self) -> float | None:
        return None

    def take(self) -> tuple[int, float]:
        raise AssertionError("a replica takes what the router sends")

    def ended(self, when_s: float, row: int) -> None:
        self.ended_rows.append((when_s, row))


class Replica:
    """Requests are sent in order of arrival; steps are taken by whoever owns the fleet's time."""

    def __init__(self, name: str, simulation: Simulation, front: FrontEnd, workload: Workload) -> None:
        self.name, self.simulation, self._front = name, simulation, front
        self._ends = Ends()
        self.run = Run(front, workload, simulation.clock, self._ends)
        self._open_until: list[float] = []  # heap: ends known already that lie after the time last looked at
        self._num_running_on = 0  # sent and not known to end

    @property
    def is_busy(self) -> bool:
        return self._front.has_unfinished()

    @property
    def now_s(self) -> float:
        """Where its clock stands: the begin of its next step if it is busy."""
        return self.run.now_s()

    def send(self, row: int, arrival_s: float) -> None:
        """Hand over a request; an idle engine wakes up."""
        if not self.is_busy:
            self.simulation.clock.sleep_until(self.run.start_s + arrival_s)
            self.run.awake_s = max(self.run.awake_s, arrival_s)
        self._num_running_on += 1
        self.run.send(row, arrival_s, arrival_s)

    def step(self, until_s: float = math.inf) -> list[tuple[float, int]]:
        """One step (several without news, up to `until_s`); returns (time, row) of requests that ended."""
        self.run.step(until_s)
        return self.take_ends()

    def take_ends(self) -> list[tuple[float, int]]:
        """(time, row) of requests that ended since the last call."""
        ends = self._ends.ended_rows
        self._ends.ended_rows = []
        for when_s, _ in ends:
            self._num_running_on -= 1
            heapq.heappush(self._open_until, when_s)
        return ends

    def look(self, now_s: float) -> None:
        """Set the time at which the router looks; never goes back."""
        while self._open_until and self._open_until[0] <= now_s:
            heapq.heappop(self._open_until)

    @property
    def num_open(self) -> int:
        return self._num_running_on + len(self._open_until)

    @property
    def num_waiting(self) -> int:
        """Sent, and not part of a step yet."""
        return len(self.run.unscheduled)

    @property
    def num_kv_blocks(self) -> int:
        blocks = self.simulation.core.scheduler.blocks
        waiting = sum(blocks.num_blocks_for(request.num_prompt_tokens) for request in self.run.unscheduled.values())
        return int(blocks.pool.num_in_use + waiting)
