"""Who gets in: a rate per client, the queue of the replica that would take it, how long it would wait there."""

from __future__ import annotations

from collections import Counter

import numpy as np

from workbench.loadgen.fleet.replica import Replica
from workbench.scenario.fleet import RateLimit
from workbench.scenario.target import SimulatedTarget as FleetSpec
from workbench.workload.randomness import stream
from workbench.workload.records import IntArray, Workload


class TokenBucket:
    """Holds up to `size` tokens, gets `rate_per_s`; full at the beginning."""

    def __init__(self, rate_per_s: float, size: float) -> None:
        self._rate_per_s, self._size, self._tokens, self._last_s = rate_per_s, size, size, 0.0

    def take(self, now_s: float) -> bool:
        """One token; False, and nothing taken, where there is none. `now_s` never goes back."""
        self._tokens = min(self._size, self._tokens + (now_s - self._last_s) * self._rate_per_s)
        self._last_s = now_s
        if self._tokens < 1.0 - 1e-9:  # sums of gaps that make up a token may round to less
            return False
        self._tokens -= 1.0
        return True


class Door:
    """Says why a request is turned away, and counts the reasons."""

    def __init__(self, spec: FleetSpec, workload: Workload, seed: int) -> None:
        self._spec = spec
        self.counts: Counter[str] = Counter()
        """Reason -> requests."""
        self._owners = None if spec.rate_limit is None else owners_of(spec.rate_limit, workload, seed)
        self._buckets: dict[int, TokenBucket] = {}

    def refuse(self, reason: str, message: str) -> str:
        """Count a request that is turned away; returns the message."""
        self.counts[reason] += 1
        return message

    def find_rate_refusal(self, row: int, now_s: float) -> str | None:
        """Why the request's sender may not send now; takes from its bucket where it may."""
        limit = self._spec.rate_limit
        if limit is None or self._owners is None:
            return None
        owner = int(self._owners[row])
        if owner not in self._buckets:
            self._buckets[owner] = TokenBucket(limit.requests_per_s, limit.burst + 1.0)
        if self._buckets[owner].take(now_s):
            return None
        who = "all" if limit.per == "all" else f"this {limit.per}"
        text = f"429: over {limit.requests_per_s:g} requests/s of {who}, burst {limit.burst}"
        return self.refuse("rate_limit", text)

    def find_full(self, replica: Replica) -> str | None:
        """Why a replica's queue is too long."""
        limit, waiting = self._spec.queue_limit, replica.num_waiting
        if limit is None or waiting == 0 or waiting < limit:
            return None
        text = f"429: {waiting} requests wait at {replica.name}, queue_limit is {limit}"
        return self.refuse("queue_limit", text)

    def find_queue_refusal(self, replica: Replica, now_s: float) -> str | None:
        """Why a replica takes no more."""
        if (full := self.find_full(replica)) is not None:
            return full
        deadline_s = self._spec.deadline_s
        if deadline_s is not None and (expected_s := replica.expected_wait_s(now_s)) > deadline_s:
            text = f"503: about {expected_s:.3g} s to wait at {replica.name}, deadline_s is {deadline_s:g}"
            return self.refuse("deadline_foreseen", text)
        return None


def owners_of(limit: RateLimit, workload: Workload, seed: int) -> IntArray:
    """[n] whose bucket each request takes from."""
    if limit.per == "all":
        return np.zeros(len(workload), dtype=np.int64)
    if limit.per == "class":
        return workload.class_index
    drawn = stream(seed, "clients").integers(limit.clients, size=len(workload))
    first: dict[int, int] = {}
    for row, session in enumerate(workload.session_index.tolist()):
        if session >= 0:
            drawn[row] = drawn[first.setdefault(session, row)]
    return np.asarray(drawn, dtype=np.int64)
