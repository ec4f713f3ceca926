"""The part of a run that is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from workbench.metrics.definitions import BoolArray
from workbench.metrics.records import FloatArray, RequestTable, RunRecord, StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """From `start_s` to `end_s`, both included; a request belongs to it when it was sent in it."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    def holds_requests(self, table: RequestTable) -> BoolArray:
        """[n] which requests belong to it; one that was never sent counts by its intended arrival."""
        issued = issued_s(table)
        return np.asarray((issued >= self.start_s) & (issued <= self.end_s))

    def holds_steps(self, steps: StepTable) -> BoolArray:
        """[steps] which steps began in it."""
        return np.asarray((steps.start_s >= self.start_s) & (steps.start_s <= self.end_s))


def cut_to(record: RunRecord, window: Window) -> RunRecord:
    """Leave out what lies outside of a window: requests sent and steps begun before or after it."""
    requests, steps = window.holds_requests(record.requests), window.holds_steps(record.steps)
    if requests.all() and steps.all():
        return record
    return replace(
        record,
        requests=record.requests.rows(np.flatnonzero(requests)),
        steps=record.steps.rows(np.flatnonzero(steps)),
        duration_s=window.duration_s,
    )


def measurement_window(record: RunRecord, *, warm_up_s: float = 0.0, cool_down_s: float = 0.0) -> Window:
    """The whole run, or what is left after `warm_up_s` at its start and `cool_down_s` before its last arrival.

    With a cool-down the window ends `cool_down_s` before the last arrival, so that every request in it was measured
    under load. The whole run reaches to the last request issued: those that a dead server refused count. Raises
    `ValueError` when nothing is left.
    """
    arrivals = record.requests.arrival_s
    first = float(arrivals.min()) if len(arrivals) else 0.0
    end = max(first + record.duration_s, float(issued_s(record.requests).max(initial=first)))
    if cool_down_s > 0 and len(arrivals):
        end = float(arrivals.max()) - cool_down_s
    window = Window(start_s=first + warm_up_s, end_s=end)
    if window.duration_s < 0 or (window.duration_s == 0 and warm_up_s + cool_down_s > 0):
        raise ValueError(
            f"measurement: warm_up and cool_down leave nothing of a run of {record.duration_s:.3g} s. Shorten them"
        )
    return window


def issued_s(table: RequestTable) -> FloatArray:
    """[n] when each request was sent; its intended arrival where it never was."""
    return np.asarray(np.where(np.isnan(table.sent_s), table.arrival_s, table.sent_s), dtype=np.float64)
