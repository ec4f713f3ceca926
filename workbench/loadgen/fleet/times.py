"""When each request's tokens came, told by the steps of several engines."""

from __future__ import annotations

from array import array

import numpy as np

from workbench.loadgen.token_times import StepTimes
from workbench.metrics.records import FloatArray, IntArray

_STEPS = 1 << 40
"""Numbers of steps that one engine can have: step k of engine e has the number e * _STEPS + k."""


class EngineTimes:
    """The steps of one engine, as its driver tells them."""

    def __init__(self, fleet: FleetTimes, number: int) -> None:
        self._fleet, self._first_step = fleet, number * _STEPS
        self.step_end_s = array("d")
        self.num_tokens = 0

    def add(self, row: int, first_step: int, count: int) -> None:
        self.num_tokens += count
        self._fleet.add(row, self._first_step + first_step, count)


class FleetTimes(StepTimes):
    """Tokens by the steps that gave them, whichever engine took these; a request may have been in several."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows)
        self._engines: list[EngineTimes] = []

    def new_engine(self) -> EngineTimes:
        """Steps of one more engine."""
        self._engines.append(EngineTimes(self, len(self._engines)))
        return self._engines[-1]

    def _at(self, steps: IntArray) -> FloatArray:
        if not len(steps):
            return np.zeros(0)
        logs = [np.array(engine.step_end_s, dtype=np.float64) for engine in self._engines]
        base = np.cumsum([0, *(len(log) for log in logs)])
        return np.asarray(np.concatenate(logs)[base[steps // _STEPS] + steps % _STEPS], dtype=np.float64)
