"""The event loop of a fleet: every replica has its own clock; the one that is furthest behind steps next.

An arrival is routed once every busy replica's clock has reached it, and so happens all else that the calendar holds: a
KV cache arrives, a replica fails, starts or is ready, a wait comes to its limit, a scaler looks at its queue. A step in
progress at that moment has been computed already; what it brings is not shown to the router before its end.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from heapq import heappop, heappush

from engine.errors import RequestRefused
from workbench.loadgen.driver import CoreBroken
from workbench.loadgen.fleet.calendar import Calendar
from workbench.loadgen.fleet.door import Door
from workbench.loadgen.fleet.handoff import Handoff
from workbench.loadgen.fleet.link import Link
from workbench.loadgen.fleet.place import Place
from workbench.loadgen.fleet.pool import Pool
from workbench.loadgen.fleet.replica import End, Replica, Role
from workbench.loadgen.fleet.routing import prefix_key, router_of
from workbench.loadgen.fleet.times import FleetTimes
from workbench.loadgen.fleet.upkeep import Upkeep
from workbench.loadgen.observation import Observation
from workbench.loadgen.pacing import OpenLoop, pacing_of
from workbench.loadgen.questions import Questions
from workbench.loadgen.simulated import SimulatedTarget
from workbench.loadgen.target import Progress, ProgressCallback
from workbench.metrics.records import Outcome, StopRule
from workbench.scenario.fleet import PoolSpec, num_places
from workbench.scenario.target import SimulatedTarget as FleetSpec
from workbench.workload.records import Workload


class FleetRun:
    """State of one run. Times are seconds from its start."""

    def __init__(self, instance: SimulatedTarget, spec: FleetSpec, workload: Workload, seed: int) -> None:
        self.instance, self.spec, self.workload = instance, spec, workload
        self.pacing = pacing_of(workload)
        self.times = FleetTimes(len(workload))
        self.seen = Observation(workload, self.times)
        """What the clients see."""
        self.door = Door(spec, workload, seed)
        self.retries: Counter[int] = Counter()
        """Row -> times that it was sent again."""
        self.calendar = Calendar()
        self.pools = self._pools(seed)
        self.upkeep = Upkeep(self.pools, spec.failures, self.calendar, self._lose_all)
        entrances = [pool for pool in self.pools if pool.role != "decode"]
        self._entrances = sorted(entrances, key=lambda pool: pool.max_input_tokens)
        self.handoff = self._handoff()
        self.cap = workload.max_concurrency if workload.max_concurrency is not None else len(workload) + 1
        self.stopped: str | None = None
        self._questions = Questions(len(workload))
        self._num_open = self._num_events = 0
        self._sent_s = 0.0  # when the latest arrival was let in
        self._open_until: list[float] = []  # heap: ends known already that lie after the last arrival

    def _pools(self, seed: int) -> list[Pool]:
        spec = self.spec
        alone = PoolSpec(name="replica", replicas=spec.replicas, autoscaling=spec.autoscaling)
        pools = []
        for number, each in enumerate(spec.pools or (alone,)):
            count = num_places(each.replicas, each.autoscaling)
            names = [f"{each.name}-{i}" for i in range(count)]
            places = [Place(name, partial(self._new_engine, name, each.role, i)) for i, name in enumerate(names)]
            pools.append(Pool(each, places, router_of(spec, count, seed + number)))
        return pools

    def _new_engine(self, name: str, role: Role, slot: int) -> Replica:
        simulation = self.instance.simulation()
        front, times = self.instance.front_end(simulation), self.times.new_engine()
        return Replica(name, role, slot, simulation, front, self.workload, self.seen, times)

    def _handoff(self) -> Handoff | None:
        if self.spec.link is None:
            return None
        resolved = self.instance.resolved
        rank_bytes = resolved.memory.bytes_per_block // resolved.config.cache.block_size
        link = Link(self.spec.link, rank_bytes * self.spec.tensor_parallel_size)
        decode = next(pool for pool in self.pools if pool.role == "decode")
        return Handoff(link, decode, self.calendar, self, self.upkeep.drained)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def to_end(self, deadline_s: float | None, on_progress: ProgressCallback | None, stop: StopRule | None) -> None:
        """Until all requests have ended, until `deadline_s`, or until `stop` gives a reason.

        Raises `CoreBroken` with the replica's name when an engine breaks; `__cause__` says what.
        """
        limit_s = math.inf if deadline_s is None else deadline_s
        while True:
            due_s, event_s = self._due_s(), self.calendar.next_s()
            if due_s == math.inf and not self._num_open:
                break
            next_s = min(limit_s, due_s, event_s)
            behind = self._furthest_behind(next_s)
            if behind is not None:
                self._step(behind, next_s)
            elif next_s >= limit_s:
                break
            elif event_s <= due_s:
                self.calendar.happen()
            else:
                self._arrive(due_s)
            if stop is not None and self._questions.is_due(self._num_events):
                self.stopped = self._ask(stop)
                if self.stopped is not None:
                    break
            if on_progress is not None and self._num_events % 64 == 0:
                on_progress(self._progress())
        self._close(limit_s)

    def latest_s(self) -> float:
        """Where the clock that is furthest ahead stands."""
        return max((engine.now_s for place in self.upkeep.places for engine in place.engines), default=0.0)

    def _due_s(self) -> float:
        """When the next request may be sent: at its arrival, or when one before has made room for it."""
        due_s, ends = self.pacing.next_due_s(), self._open_until
        if due_s is None:
            return math.inf
        due_s = max(due_s, self._sent_s)
        while ends and ends[0] <= due_s:
            heappop(ends)
        if self._num_open + len(ends) < self.cap:
            return due_s
        return ends[0] if ends else math.inf

    def _furthest_behind(self, until_s: float) -> Replica | None:
        """The busy replica whose next step begins first, if before `until_s`."""
        busy = [engine for engine in self.upkeep.engines() if engine.is_busy]
        first = min(busy, key=lambda engine: engine.now_s, default=None)
        return first if first is not None and first.now_s < until_s else None

    def _step(self, replica: Replica, until_s: float) -> None:
        try:
            ends = replica.step(min(until_s, self._word_s(replica)))
        except CoreBroken as broken:
            raise CoreBroken(replica.name) from broken.__cause__
        for end in ends:
            self._note(replica, end)
        if not replica.is_busy:
            self.upkeep.drained(replica, replica.now_s)

    def _word_s(self, replica: Replica) -> float:
        """Until when nothing that ends elsewhere can send something here: as far as the clocks of the others are."""
        others = [other for other in self.upkeep.engines() if other is not replica and other.is_busy]
        if isinstance(self.pacing, OpenLoop) and self._num_open < self.cap:
            others = [other for other in others if other.role == "prefill" and replica.role == "decode"]
        return min((other.now_s for other in others), default=math.inf)

    def _note(self, replica: Replica, end: End) -> None:
        """An engine is done with a request; one whose prompt alone it had goes on elsewhere."""
        if self.handoff is not None and replica.role == "prefill" and not self._is_answered(end.row):
            self.handoff.expect(end.row, replica, end.when_s)
            return
        self.seen.finish(end.row, end.reason)
        self._leave(end.row, end.when_s)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _arrive(self, now_s: float) -> None:
        row, arrival_s = self.pacing.take()
        self._sent_s = now_s
        self._num_events += 1
        self.seen.issue(row, arrival_s, now_s)
        self._num_open += 1
        refusal = self.door.find_rate_refusal(row, now_s)
        replica = None if refusal is not None else self._choose(row, now_s)
        if refusal is None:
            refusal = self._refuse_unrouted(row) if replica is None else self._find_refusal(replica, now_s)
        if refusal is not None or replica is None:
            self.seen.end(row, Outcome.REJECTED, refusal)
            self._leave(row, now_s)
            return
        self.send(row, replica, now_s, arrival_s=arrival_s)

    def _find_refusal(self, replica: Replica, now_s: float) -> str | None:
        """Why a request is not let in: who would take it has too many, or everybody who would take it over."""
        refusal = self.door.find_queue_refusal(replica, now_s)
        receiver = None if refusal is not None or self.handoff is None else self.handoff.least_waiting()
        return refusal if receiver is None else self.door.find_full(receiver)

    def _choose(self, row: int, now_s: float) -> Replica | None:
        pool = self._pool_of(row)
        return None if pool is None else pool.choose(now_s, self.key(row))

    def _pool_of(self, row: int) -> Pool | None:
        length = int(self.workload.num_prompt_tokens[row])
        return next((pool for pool in self._entrances if length <= pool.max_input_tokens), None)

    def _refuse_unrouted(self, row: int) -> str:
        pool = self._pool_of(row)
        if pool is not None:
            return self.door.refuse("nobody_up", f"503: no {pool.name} is up")
        length = int(self.workload.num_prompt_tokens[row])
        return self.door.refuse("too_long", f"no pool takes a prompt of {length} tokens")

    def send(
        self, row: int, replica: Replica, now_s: float, *, arrival_s: float | None = None, num_computed: int = 0
    ) -> None:
        """Hand a request to a replica; its engine sees it arrive now unless `arrival_s` says otherwise."""
        num_tokens = self.times.num_tokens(row)
        most = num_tokens + 1 if replica.role == "prefill" else int(self.workload.max_output_tokens[row])
        try:
            replica.send(
                row,
                now_s,
                arrival_s=now_s if arrival_s is None else arrival_s,
                max_tokens=most,
                num_tokens=num_tokens,
                num_computed=num_computed,
            )
        except RequestRefused as refusal:
            self.seen.end(row, Outcome.REJECTED, str(refusal))
            self._leave(row, now_s)
            return
        self.upkeep.sent(replica, now_s)
        if self.spec.deadline_s is not None and math.isnan(self.seen.first_scheduled_s[row]):
            until_s = self.seen.sent_s[row] + self.spec.deadline_s
            self.calendar.add(max(until_s, now_s), partial(self._give_up, row, replica))

    def _give_up(self, row: int, replica: Replica, now_s: float) -> None:
        if not replica.is_dead and replica.withdraw(row):
            text = f"504: waited {self.spec.deadline_s:g} s at {replica.name}, which is deadline_s"
            self.seen.end(row, Outcome.FAILED, self.door.refuse("deadline_passed", text))
            self._leave(row, now_s)
            self.upkeep.drained(replica, now_s)

    def lose(self, row: int, now_s: float, reason: str) -> None:
        """What was computed for a request is gone: send it again where that is allowed and somebody is up."""
        num_tokens = self.times.num_tokens(row)
        may_retry = self.spec.retry == "all" or (self.spec.retry == "unstarted" and not num_tokens)
        replica = self._choose(row, now_s) if may_retry else None
        if replica is None:
            why = f"{reason} after {num_tokens} tokens" + ("; nobody else is up" if may_retry else "")
            self.seen.end(row, Outcome.FAILED, self.door.refuse("lost", f"502: {why}"))
            self._leave(row, now_s)
            return
        self.retries[row] += 1
        self.send(row, replica, now_s)

    def _lose_all(self, engine: Replica, now_s: float) -> int:
        rows = engine.lose() + ([] if self.handoff is None else self.handoff.drop(engine, now_s))
        for row in rows:
            self.lose(row, now_s, f"{engine.name} failed")
        return len(rows)

    def _leave(self, row: int, when_s: float) -> None:
        self._num_open -= 1
        self._num_events += 1
        heappush(self._open_until, when_s)
        self.pacing.ended(when_s, row)

    def num_known_tokens(self, row: int) -> int:
        """Prompt and answer so far."""
        return int(self.workload.num_prompt_tokens[row]) + self.times.num_tokens(row)

    def _is_answered(self, row: int) -> bool:
        longest = int(self.workload.num_prompt_tokens[row] + self.workload.max_output_tokens[row])
        return self.num_known_tokens(row) >= min(longest, self.instance.resolved.max_model_len)

    def key(self, row: int) -> bytes:
        """What routing by prefix goes by."""
        return prefix_key(self.spec, self.workload, row)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _ask(self, stop: StopRule) -> str | None:
        busy = [engine for engine in self.upkeep.engines() if engine.is_busy]
        for engine in busy:
            engine.settle()
        return stop(self.seen.so_far(min((engine.now_s for engine in busy), default=self.latest_s())))

    def _close(self, limit_s: float) -> None:
        """What is due but held back was issued too; what is open is aborted."""
        end_s = min(limit_s, self.latest_s())
        while (due_s := self.pacing.next_due_s()) is not None and due_s < end_s:
            row, arrival_s = self.pacing.take()
            self.seen.issue(row, arrival_s, float("nan"))
        for engine in self.upkeep.engines():
            engine.abandon()

    def _progress(self) -> Progress:
        return Progress(
            elapsed_s=self.latest_s(),
            num_requests=len(self.workload),
            num_sent=len(self.seen.issued),
            num_ended=self.seen.num_ended,
            num_output_tokens=self.seen.num_output_tokens,
        )
