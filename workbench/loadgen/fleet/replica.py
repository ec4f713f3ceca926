"""One engine of a fleet: its own clock, its own queue, and what the router sees of it."""

from __future__ import annotations

import heapq
import math
from typing import Literal, NamedTuple

from engine.core.received_kv import ReceivedKv
from engine.executor.simulated import SIMULATED_TOKEN
from engine.outputs import RequestOutput
from engine.simulation import Simulation
from workbench.loadgen.driver import Run
from workbench.loadgen.fleet.times import EngineTimes
from workbench.loadgen.observation import Observation
from workbench.loadgen.simulated import FrontEnd
from workbench.workload.records import Workload

Role = Literal["prefill", "decode"] | None
"""Which half of the work it does; None: both."""


class End(NamedTuple):
    """An engine is done with a request."""

    when_s: float
    row: int
    reason: str


class _NoArrivals:
    """The pacing of a replica: nothing is due by itself."""

    num_left = 0

    def next_due_s(self) -> float | None:
        return None

    def take(self) -> tuple[int, float]:
        raise AssertionError("a replica takes what the router sends")

    def ended(self, when_s: float, row: int) -> None:
        pass


class EngineRun(Run):
    """The driver of one engine; what happens is told to the observation of the whole fleet."""

    def __init__(
        self, front: FrontEnd, workload: Workload, simulation: Simulation, seen: Observation, times: EngineTimes
    ) -> None:
        super().__init__(front, workload, simulation.clock, _NoArrivals(), observed=(seen, times))
        self.ends: list[End] = []

    def _begin(self, row: int, when_s: float) -> None:
        if math.isnan(self.seen.first_scheduled_s[row]):  # else it began elsewhere
            self.seen.first_scheduled_s[row] = when_s

    def _finish(self, row: int, output: RequestOutput, reason: str, now_s: float) -> None:
        if self.seen.num_cached_tokens[row] < 0:
            self.seen.num_cached_tokens[row] = output.num_cached_tokens
        self.seen.num_preemptions[row] += output.num_preemptions
        self.ends.append(End(now_s, row, reason))


class Replica:
    """Requests are sent in order of time; steps are taken by whoever owns the fleet's time."""

    def __init__(
        self,
        name: str,
        role: Role,
        slot: int,
        simulation: Simulation,
        front: FrontEnd,
        workload: Workload,
        seen: Observation,
        times: EngineTimes,
    ) -> None:
        self.name, self.role, self.slot, self.simulation, self.times = name, role, slot, simulation, times
        self._front, self._workload = front, workload
        self.run = EngineRun(front, workload, simulation, seen, times)
        self.num_sent = 0
        self.is_dead = False
        self.incoming: set[int] = set()
        """Rows whose KV is on its way here; they count as open."""
        self.num_outgoing = 0
        """KV caches that wait for the link or are on it."""
        self.link_free_s = 0.0
        self._open_until: list[float] = []  # heap: ends known already that lie after the time last looked at
        self._num_running_on = 0  # sent and not known to end
        self._queue_since_s = 0.0  # when the queue was last empty
        self._num_entered = 0  # that joined the queue since
        scheduler = simulation.core.scheduler
        self._received = ReceivedKv(scheduler.preemption, scheduler.blocks)
        scheduler.suspend_by(self._received)

    @property
    def is_busy(self) -> bool:
        return self._front.has_unfinished()

    @property
    def is_idle(self) -> bool:
        """Nothing is here, on its way here or from here."""
        return not (self.is_busy or self.incoming or self.num_outgoing)

    @property
    def now_s(self) -> float:
        """Where its clock stands: the begin of its next step if it is busy."""
        return self.run.now_s()

    def send(
        self, row: int, now_s: float, *, arrival_s: float, max_tokens: int, num_tokens: int, num_computed: int
    ) -> None:
        """Hand over a request; an idle engine wakes up. Raises `RequestRefused` for one that can never be served.

        `max_tokens` counts the `num_tokens` that were answered already; the KV of the first `num_computed` tokens is
        here.
        """
        if not self.is_busy:
            self.run.clock.sleep_until(self.run.start_s + now_s)
            self.run.awake_s = max(self.run.awake_s, now_s)
        request = self.run.request(row, arrival_s, max_tokens)
        request.all_token_ids.extend([SIMULATED_TOKEN] * num_tokens)
        request.num_tokens += num_tokens
        if not self.run.unscheduled:
            self._queue_since_s, self._num_entered = now_s, 0
        self.run.hand_over(row, request)
        if num_computed:
            self._received.receive(request.request_id, num_computed)
        self.num_sent += 1
        self._num_entered += 1
        self._num_running_on += 1

    def withdraw(self, row: int) -> bool:
        """Take back a request that is not part of a step yet; False where it is."""
        request = self.run.unscheduled.get(row)
        if request is None or request.num_cached_tokens is not None:
            return False
        self._front.abort(request.request_id)
        del self.run.rows[request.request_id], self.run.unscheduled[row]
        self._num_entered -= 1
        self._num_running_on -= 1
        return True

    def step(self, until_s: float = math.inf) -> list[End]:
        """One step (several without news, up to `until_s`); returns what ended."""
        self.run.step(until_s)
        ends, self.run.ends = self.run.ends, []
        for end in ends:
            self._num_running_on -= 1
            heapq.heappush(self._open_until, end.when_s)
        return ends

    def lose(self) -> list[int]:
        """The engine dies; returns the rows that were in it, in order of sending."""
        self.settle()
        rows = list(self.run.rows.values())
        for request_id, row in self.run.rows.items():
            request = self.simulation.core.scheduler.find_request(request_id)
            self.run.seen.num_preemptions[row] += 0 if request is None else request.num_preemptions
        return rows

    def settle(self) -> None:
        """Let all tokens that have come be told."""
        self.run.take(self._front.settle())

    def abandon(self) -> None:
        """The run is over: what is open stays unfinished."""
        self.settle()
        for request_id in list(self.run.rows):
            self._front.abort(request_id)

    def look(self, now_s: float) -> None:
        """Set the time at which the router looks; never goes back."""
        while self._open_until and self._open_until[0] <= now_s:
            heapq.heappop(self._open_until)

    @property
    def num_open(self) -> int:
        return self._num_running_on + len(self._open_until) + len(self.incoming)

    @property
    def num_waiting(self) -> int:
        """Sent, and not part of a step yet."""
        return len(self.run.unscheduled)

    def expected_wait_s(self, now_s: float) -> float:
        """How long a request sent now would wait at the pace of the queue since it was last empty."""
        num_waiting, since_s = self.num_waiting, now_s - self._queue_since_s
        if not num_waiting:
            return 0.0
        num_started = self._num_entered - num_waiting
        return since_s * num_waiting / num_started if num_started > 0 else since_s

    @property
    def num_kv_blocks(self) -> int:
        blocks = self.simulation.core.scheduler.blocks
        waiting = sum(blocks.num_blocks_for(request.num_prompt_tokens) for request in self.run.unscheduled.values())
        coming = sum(blocks.num_blocks_for(int(self._workload.num_prompt_tokens[row])) for row in self.incoming)
        return int(blocks.pool.num_in_use + waiting + coming)
