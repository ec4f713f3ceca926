"""The event loop of a fleet: every replica has its own clock; the one that is furthest behind steps next.

An arrival is routed once every busy replica's clock has reached it. A step in progress at that moment has been
computed already; what it brings is not shown to the router before its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.step_log import StepLog
from workbench.loadgen.driver import CoreBroken
from workbench.loadgen.errors import RunFailed
from workbench.loadgen.fleet.record import joined_partial
from workbench.loadgen.fleet.replica import Replica
from workbench.loadgen.fleet.routing import Router, router_of
from workbench.loadgen.observation import Observation
from workbench.loadgen.pacing import OpenLoop, pacing_of
from workbench.loadgen.questions import Questions
from workbench.loadgen.simulated import SimulatedTarget
from workbench.loadgen.target import Progress, ProgressCallback
from workbench.loadgen.token_times import ListedTimes
from workbench.metrics.records import Outcome, PartialRun, RunRecord, StopRule
from workbench.scenario.target import SimulatedTarget as FleetSpec
from workbench.workload.records import Workload


class _Pool:
    """Replicas that serve the same requests."""

    def __init__(self, replicas: Sequence[Replica], router: Router, max_input_tokens: int | None) -> None:
        self.replicas, self.router = replicas, router
        self.max_input_tokens = math.inf if max_input_tokens is None else max_input_tokens


class FleetRun:
    """State of one run. Times are seconds from its start."""

    def __init__(self, instance: SimulatedTarget, spec: FleetSpec, workload: Workload, seed: int) -> None:
        self.spec, self.workload = spec, workload
        self.pacing = pacing_of(workload)
        self.refused = Observation(workload, ListedTimes(len(workload)))
        """Those that the router turned away."""
        groups = [(pool.name, pool.replicas, pool.max_input_tokens) for pool in spec.pools]
        self.pools = []
        for number, (name, count, longest) in enumerate(groups or [("replica", spec.replicas, None)]):
            replicas = [_replica(f"{name}-{i}", instance, workload) for i in range(count)]
            self.pools.append(_Pool(replicas, router_of(spec, count, seed + number), longest))
        self.pools.sort(key=lambda pool: pool.max_input_tokens)
        self.replicas = [replica for pool in self.pools for replica in pool.replicas]
        self.cap = workload.max_concurrency if workload.max_concurrency is not None else len(workload) + 1
        self.stopped: str | None = None
        self._questions = Questions(len(workload))
        self._num_open = self._num_events = 0

    def to_end(self, deadline_s: float | None, on_progress: ProgressCallback | None, stop: StopRule | None) -> None:
        """Until all requests have ended, until `deadline_s`, or until `stop` gives a reason.

        Raises `RunFailed`, without a record, when an engine breaks.
        """
        limit_s = math.inf if deadline_s is None else deadline_s
        while True:
            due_s = self.pacing.next_due_s() if self._num_open < self.cap else None
            next_s = min(limit_s, math.inf if due_s is None else due_s)
            behind = self._furthest_behind(next_s)
            if behind is not None:
                self._step(behind, next_s)
            elif due_s is None or due_s >= limit_s:
                break
            else:
                self._route(due_s)
            if stop is not None and self._questions.is_due(self._num_events):
                self.stopped = stop(self._so_far())
                if self.stopped is not None:
                    break
            if on_progress is not None and self._num_events % 64 == 0:
                on_progress(self._progress())
        self._close(limit_s)

    def records(self) -> list[RunRecord]:
        """Of each replica and of the front door."""
        door = self.refused.record(StepLog(), start_s=0.0, end_s=0.0, clock="virtual", engine={})
        return [*(replica.run.record({}) for replica in self.replicas), door]

    def _furthest_behind(self, until_s: float) -> Replica | None:
        """The busy replica whose next step begins first, if before `until_s`."""
        busy = [replica for replica in self.replicas if replica.is_busy]
        first = min(busy, key=lambda replica: replica.now_s, default=None)
        return first if first is not None and first.now_s < until_s else None

    def _step(self, replica: Replica, until_s: float) -> None:
        if not isinstance(self.pacing, OpenLoop) or self._num_open >= self.cap:
            # What ends elsewhere may send something here: no further than the next one's clock.
            others = (other.now_s for other in self.replicas if other is not replica and other.is_busy)
            until_s = min(until_s, min(others, default=until_s))
        try:
            ends = replica.step(until_s)
        except CoreBroken as broken:
            error = broken.__cause__
            record = replica.run.record({})
            raise RunFailed(f"{replica.name} broke: {type(error).__name__}: {error}", record) from error
        self._note(ends)

    def _note(self, ends: Sequence[tuple[float, int]]) -> None:
        for when_s, row in ends:
            self._num_open -= 1
            self._num_events += 1
            self.pacing.ended(when_s, row)

    def _route(self, now_s: float) -> None:
        row, arrival_s = self.pacing.take()
        self._num_events += 1
        length = int(self.workload.num_prompt_tokens[row])
        pool = next((pool for pool in self.pools if length <= pool.max_input_tokens), None)
        if pool is None:
            self._refuse(row, arrival_s, now_s, f"no pool takes a prompt of {length} tokens")
            return
        for replica in pool.replicas:
            replica.look(now_s)
        replica = pool.replicas[pool.router.choose(pool.replicas, self._key(row))]
        limit = self.spec.queue_limit
        if limit is not None and replica.num_waiting > 0 and replica.num_waiting >= limit:
            text = f"429: {replica.num_waiting} requests wait at {replica.name}, queue_limit is {limit}"
            self._refuse(row, arrival_s, now_s, text)
            return
        self._num_open += 1
        replica.send(row, now_s if arrival_s < now_s else arrival_s)
        self._note(replica.take_ends())

    def _refuse(self, row: int, arrival_s: float, now_s: float, message: str) -> None:
        self.refused.issue(row, arrival_s, now_s)
        self.refused.end(row, Outcome.REJECTED, message)
        self._num_events += 1
        self.pacing.ended(now_s, row)

    def _key(self, row: int) -> bytes:
        """What routing by prefix goes by: the conversation, or how the prompt begins."""
        if self.spec.routing != "prefix_hash":
            return b""
        session = int(self.workload.session_index[row])
        if session >= 0:
            return f"session {session}".encode()
        return self.workload.prompt_token_ids(row)[: self.spec.prefix_tokens].tobytes()

    def _so_far(self) -> PartialRun:
        now_s = min((replica.now_s for replica in self.replicas if replica.is_busy), default=self._latest_s())
        for replica in self.replicas:
            replica.run.take(replica.run.core.settle())
            self._note(replica.take_ends())
        parts = [replica.run.seen.so_far(now_s) for replica in self.replicas]
        return joined_partial([*parts, self.refused.so_far(now_s)], now_s)

    def _latest_s(self) -> float:
        return max(replica.now_s for replica in self.replicas)

    def _close(self, limit_s: float) -> None:
        """What is due but held back was issued too; what is open is aborted."""
        end_s = min(limit_s, self._latest_s())
        while (due_s := self.pacing.next_due_s()) is not None and due_s < end_s:
            row, arrival_s = self.pacing.take()
            self.refused.issue(row, arrival_s, float("nan"))
        for replica in self.replicas:
            replica.run.take(replica.run.core.settle())
            for request_id in list(replica.run.rows):
                replica.run.core.abort(request_id)

    def _progress(self) -> Progress:
        seen = [*(replica.run.seen for replica in self.replicas), self.refused]
        return Progress(
            elapsed_s=self._latest_s(),
            num_requests=len(self.workload),
            num_sent=sum(len(each.issued) for each in seen),
            num_ended=sum(each.num_ended for each in seen),
            num_output_tokens=sum(each.num_output_tokens for each in seen),
        )


def _replica(name: str, instance: SimulatedTarget, workload: Workload) -> Replica:
    simulation = instance.simulation()
    return Replica(name, simulation, instance.front_end(simulation), workload)
