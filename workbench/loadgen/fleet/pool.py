"""Replicas that serve the same requests: who is up, who takes the next one, how many there should be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.loadgen.fleet.place import Place, State
from workbench.loadgen.fleet.replica import Replica
from workbench.loadgen.fleet.routing import Router
from workbench.loadgen.fleet.scaling import Autoscaler
from workbench.scenario.fleet import PoolSpec


class Pool:
    """Its places in order; the first `replicas` of them serve from the beginning."""

    def __init__(self, spec: PoolSpec, places: Sequence[Place], router: Router) -> None:
        self.name, self.role, self.places, self._router = spec.name, spec.role, places, router
        self.max_input_tokens = math.inf if spec.max_input_tokens is None else spec.max_input_tokens
        scaling = spec.autoscaling
        count = spec.replicas if scaling is None else max(spec.replicas, scaling.min_replicas)
        self.scaler = None if scaling is None else Autoscaler(scaling, count)
        self.serving: list[Replica] = []
        """Engines that take requests, in order of places."""
        for place in places[:count]:
            place.serve(0.0)
        self.notice()

    def notice(self) -> None:
        """Places have changed."""
        self.serving = [place.engine for place in self.places if place.state is State.UP]

    def choose(self, now_s: float, key: bytes) -> Replica | None:
        """Who takes a request; None where nobody is up."""
        if not self.serving:
            return None
        for replica in self.serving:
            replica.look(now_s)
        return self.serving[self._router.choose(self.serving, key)]

    @property
    def num_waiting(self) -> int:
        return sum(replica.num_waiting for replica in self.serving)

    def change_of(self, now_s: float) -> int:
        """Replicas that the scaler wants more (or, negative, fewer) than there are or will be."""
        if self.scaler is None:
            return 0
        there = self._num_there()
        return self.scaler.num_wanted(now_s, self.num_waiting, there) - there

    def is_at_rest(self) -> bool:
        """Will a scaler's looks change nothing until a request is sent here or a place changes by itself?"""
        least = 0 if self.scaler is None else self.scaler.spec.min_replicas
        return self.num_waiting == 0 and self._num_there() <= least

    def _num_there(self) -> int:
        """Replicas that there are or will be."""
        return sum(place.state in (State.UP, State.STARTING) or place.is_coming_back for place in self.places)

    def free_places(self) -> list[Place]:
        """Where replicas could be started."""
        return [place for place in self.places if place.state is State.OFF]

    def dispensable(self, now_s: float) -> list[Place]:
        """Who can go, first those that are not ready, then those with the fewest open requests; later places before
        earlier ones."""
        not_ready = [p for p in reversed(self.places) if p.state is State.STARTING or p.is_coming_back]
        up = [place for place in reversed(self.places) if place.state is State.UP]
        for place in up:
            place.engine.look(now_s)
        return not_ready + sorted(up, key=lambda place: place.engine.num_open)
