"""What happens to replicas: they fail and come back, are started and stopped as the queue asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from workbench.loadgen.fleet.calendar import Calendar
from workbench.loadgen.fleet.census import Census
from workbench.loadgen.fleet.place import Place, State
from workbench.loadgen.fleet.pool import Pool
from workbench.loadgen.fleet.replica import Replica
from workbench.scenario.fleet import Failure

Lose = Callable[[Replica, float], int]
"""A dead engine's requests go elsewhere or fail; returns how many there were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A failure that happened."""

    name: str
    at_s: float
    num_lost: int
    """Requests that were in it, or on their way from or to it."""
    back_s: float | None
    """None: it does not come back."""


class Upkeep:
    """Puts failures and looks at the queues into the calendar."""

    def __init__(self, pools: Sequence[Pool], failures: Sequence[Failure], calendar: Calendar, lose: Lose) -> None:
        self._calendar, self._lose = calendar, lose
        self.places = [place for pool in pools for place in pool.places]
        self._pool_of = {place.name: pool for pool in pools for place in pool.places}
        self.census = Census(self.places)
        self.incidents: list[Incident] = []
        self.unmet: list[Failure] = list(failures)
        """Failures that have not happened (yet)."""
        self._resting: dict[Pool, float] = {}  # pools whose scaler need not look -> when it looked last
        for failure in failures:
            calendar.add(failure.at_s, partial(self._fail, failure))
        for pool in pools:
            if pool.scaler is not None:
                calendar.add(pool.scaler.spec.interval_s, partial(self._scale, pool))

    def engines(self) -> list[Replica]:
        """Those that may have work."""
        return [place.engine for place in self.places if place.state in (State.UP, State.DRAINING)]

    def drained(self, engine: Replica, now_s: float) -> None:
        """If it is to go and has nothing to do any more, it goes when its last step has ended."""
        place = self._place_of(engine)
        if place.state is State.DRAINING and engine.is_idle:
            self._calendar.add(max(now_s, engine.now_s), partial(self._stop, place, engine))

    def _place_of(self, engine: Replica) -> Place:
        return next(place for place in self.places if place.name == engine.name)

    def _changed(self, place: Place, now_s: float) -> None:
        pool = self._pool_of[place.name]
        pool.notice()
        self.census.take(now_s)
        if (looked_s := self._resting.pop(pool, None)) is not None:
            # A look at this very moment comes after the change.
            self._look_next(pool, looked_s, max(math.ceil((now_s - looked_s) / _interval_s(pool)), 1))

    def _stop(self, place: Place, engine: Replica, now_s: float) -> None:
        if place.state is State.DRAINING and place.engine is engine and engine.is_idle:
            place.stop(now_s)
            self._changed(place, now_s)

    # -- failures -----------------------------------------------------------------------------------------------------

    def _fail(self, failure: Failure, now_s: float) -> None:
        named = failure.replica
        place = self.places[named] if isinstance(named, int) else next(p for p in self.places if p.name == named)
        if place.state not in (State.UP, State.DRAINING):
            return
        engine = place.engine
        if engine.now_s > now_s:  # in a step: at its end
            self._calendar.add(engine.now_s, partial(self._fail, failure))
            return
        after_s = failure.restart_after_s if place.state is State.UP else None
        if place.state is State.UP:
            place.fail(now_s, comes_back=after_s is not None)
        else:
            place.stop(now_s)  # it was to go anyway
        engine.is_dead = True
        self._changed(place, now_s)
        back_s = None if after_s is None else now_s + after_s
        if back_s is not None:
            self._calendar.add(back_s, partial(self._restart, place))
        self.unmet.remove(failure)
        num_lost = self._lose(engine, now_s)
        self.incidents.append(Incident(name=place.name, at_s=now_s, num_lost=num_lost, back_s=back_s))

    def _restart(self, place: Place, now_s: float) -> None:
        if place.is_coming_back:
            place.serve(now_s)
            self._changed(place, now_s)

    # -- scaling ------------------------------------------------------------------------------------------------------

    def _scale(self, pool: Pool, now_s: float) -> None:
        assert pool.scaler is not None
        spec = pool.scaler.spec
        change = pool.change_of(now_s)
        for place in pool.free_places()[: max(change, 0)]:
            place.start(now_s, now_s + spec.start_up_s)
            self._calendar.add(place.ready_s, partial(self._ready, place))
        for place in pool.dispensable(now_s)[: max(-change, 0)]:
            if place.state is State.UP:
                place.drain()
                self.drained(place.engine, now_s)
            else:
                place.stop(now_s)
        if change:
            pool.notice()
            self.census.take(now_s)
        if pool.is_at_rest():
            self._resting[pool] = now_s
        else:
            self._look_next(pool, now_s, 1)

    def sent(self, engine: Replica, now_s: float) -> None:
        """A request came to an engine: its pool's scaler looks again, at the next of its times after this."""
        if not self._resting:
            return
        pool = self._pool_of[engine.name]
        if (looked_s := self._resting.pop(pool, None)) is not None:
            self._look_next(pool, looked_s, math.floor((now_s - looked_s) / _interval_s(pool)) + 1)

    def _look_next(self, pool: Pool, looked_s: float, num_intervals: int) -> None:
        self._calendar.add(looked_s + num_intervals * _interval_s(pool), partial(self._scale, pool))

    def _ready(self, place: Place, now_s: float) -> None:
        if place.state is State.STARTING and place.ready_s == now_s:
            place.serve(now_s)
            self._changed(place, now_s)


def _interval_s(pool: Pool) -> float:
    """Between two looks of a pool that has a scaler."""
    assert pool.scaler is not None
    return pool.scaler.spec.interval_s
