"""Where a replica is, or could be: it starts, serves, drains, fails; what it costs counts from start to end."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from workbench.loadgen.fleet.replica import Replica


class State(Enum):
    OFF = "off"
    STARTING = "starting"
    UP = "up"
    DRAINING = "draining"
    """It finishes what it has and gets nothing more."""
    DOWN = "down"
    """It failed; it may come back."""


class Place:
    """One of the most replicas that a pool can have. A new engine, with an empty cache, begins with each `serve`."""

    def __init__(self, name: str, new_engine: Callable[[], Replica]) -> None:
        self.name, self._new_engine = name, new_engine
        self.state = State.OFF
        self.engines: list[Replica] = []
        """All that there were here, the latest last."""
        self.ready_s = 0.0
        """Of the start in progress."""
        self.is_coming_back = False
        """A failed one will be restarted."""
        self.rented: list[tuple[float, float]] = []
        """Spans that are paid for."""
        self._rented_from_s: float | None = None

    @property
    def engine(self) -> Replica:
        """The latest."""
        return self.engines[-1]

    def start(self, now_s: float, ready_s: float) -> None:
        """Order one that will be ready later."""
        self._rent(now_s)
        self.state, self.ready_s = State.STARTING, ready_s

    def serve(self, now_s: float) -> None:
        """It is ready."""
        self._rent(now_s)
        self.engines.append(self._new_engine())
        self.state, self.is_coming_back = State.UP, False

    def drain(self) -> None:
        self.state = State.DRAINING

    def fail(self, now_s: float, *, comes_back: bool) -> None:
        """A machine that will be restarted is paid for all the time."""
        self.state, self.is_coming_back = State.DOWN, comes_back
        if not comes_back:
            self.give_back(now_s)

    def stop(self, now_s: float) -> None:
        """It is not needed any more."""
        self.state, self.is_coming_back = State.OFF, False
        self.give_back(now_s)

    def give_back(self, now_s: float) -> None:
        """From now on it is not paid for."""
        if self._rented_from_s is not None:
            self.rented.append((self._rented_from_s, max(now_s, self._rented_from_s)))
            self._rented_from_s = None

    def rented_s(self) -> float:
        return sum(end_s - begin_s for begin_s, end_s in self.rented)

    def _rent(self, now_s: float) -> None:
        if self._rented_from_s is None:
            self._rented_from_s = max(now_s, self.rented[-1][1] if self.rented else now_s)
