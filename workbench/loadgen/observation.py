"""Collects what happens to each request during a run and turns it into the record. One owner: the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from engine.stats import StepStats
from workbench.metrics.records import Outcome, PartialRun, RequestTable, RunRecord, StepTable
from workbench.workload.records import Workload

_FINISHED_WELL = ("stop", "length")
_INT_COLUMNS = (
    "num_running",
    "num_waiting",
    "num_scheduled_requests",
    "num_scheduled_tokens",
    "num_prefill_tokens",
    "num_blocks_in_use",
    "num_free_blocks",
    "num_preempted",
    "num_recomputed_tokens",
    "num_kv_tokens",
)


class Observation:
    """Per-row lists, indexed by the workload's rows. Times are seconds from the start of the run."""

    def __init__(self, workload: Workload) -> None:
        count = len(workload)
        self.workload = workload
        self.issued: list[int] = []
        self.arrival_s = [float("nan")] * count
        self.sent_s = [float("nan")] * count
        self.first_scheduled_s = [float("nan")] * count
        self.token_times_s: list[list[float]] = [[] for _ in range(count)]
        self.num_events = [0] * count
        self.num_cached_tokens = [-1] * count
        self.num_preemptions = [0] * count
        self.outcome = [Outcome.UNFINISHED] * count
        self.has_ended = [False] * count
        self.errors: dict[int, str] = {}
        self.num_ended = 0
        self.num_output_tokens = 0

    def issue(self, row: int, arrival_s: float, sent_s: float) -> None:
        """A request became due (`sent_s` nan: and was not sent)."""
        self.issued.append(row)
        self.arrival_s[row] = arrival_s
        self.sent_s[row] = sent_s

    def tokens(self, row: int, count: int, when_s: float) -> None:
        """One event brought `count` tokens."""
        if count == 1:
            self.token_times_s[row].append(when_s)
        else:
            self.token_times_s[row].extend([when_s] * count)
        self.num_events[row] += 1
        self.num_output_tokens += count

    def end(self, row: int, outcome: Outcome, error: str | None = None) -> None:
        """A request ended."""
        self.outcome[row] = outcome
        self.has_ended[row] = True
        self.num_ended += 1
        if error is not None:
            self.errors[row] = error

    def finish(self, row: int, reason: str) -> None:
        """The engine finished a request for `reason`."""
        if reason in _FINISHED_WELL:
            self.end(row, Outcome.COMPLETED)
        else:
            self.end(row, Outcome.FAILED, f"the engine ended it: {reason}")

    def so_far(self, now_s: float) -> PartialRun:
        """What has been seen until now."""
        rows = self.issued
        index = np.array(rows, dtype=np.int64)
        ended = np.array([self.has_ended[row] for row in rows], dtype=np.bool_)
        outcome = np.array([int(self.outcome[row]) for row in rows], dtype=np.int64)
        times = [self.token_times_s[row] for row in rows]
        return PartialRun(
            now_s=now_s,
            num_requests=len(self.workload),
            class_names=self.workload.class_names,
            class_index=self.workload.class_index[index],
            arrival_s=_floats(self.arrival_s, rows),
            first_token_s=np.array([seen[0] if seen else float("nan") for seen in times], dtype=np.float64),
            last_token_s=np.array([seen[-1] if seen else float("nan") for seen in times], dtype=np.float64),
            num_output_tokens=np.array([len(seen) for seen in times], dtype=np.int64),
            max_output_tokens=self.workload.max_output_tokens[index],
            has_ended=ended,
            has_completed=ended & (outcome == Outcome.COMPLETED),
        )

    def record(
        self, steps: Sequence[StepStats], *, start_s: float, end_s: float, clock: str, engine: Mapping[str, Any]
    ) -> RunRecord:
        """The record of the rows issued, in order of arrival. `start_s` is the clock at the start of the run; `end_s`
        the end of observation, from there."""
        table = self._table()
        return RunRecord(
            requests=table,
            steps=step_table(steps, start_s),
            duration_s=_duration(table, end_s),
            clock=clock,
            engine=engine,
        )

    def _table(self) -> RequestTable:
        rows = sorted(self.issued, key=lambda row: (self.arrival_s[row], row))
        index = np.array(rows, dtype=np.int64)
        times = [self.token_times_s[row] for row in rows]
        counts = np.array([len(row_times) for row_times in times], dtype=np.int64)
        place = {row: position for position, row in enumerate(rows)}
        return RequestTable(
            request_ids=tuple(self.workload.request_ids[row] for row in rows),
            class_names=self.workload.class_names,
            class_index=self.workload.class_index[index],
            arrival_s=_floats(self.arrival_s, rows),
            sent_s=_floats(self.sent_s, rows),
            first_scheduled_s=_floats(self.first_scheduled_s, rows),
            num_prompt_tokens=self.workload.num_prompt_tokens[index],
            num_output_tokens=counts,
            num_cached_tokens=_ints(self.num_cached_tokens, rows),
            num_preemptions=_ints(self.num_preemptions, rows),
            outcome=_ints(self.outcome, rows),
            token_times_s=np.array([time for row_times in times for time in row_times], dtype=np.float64),
            token_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            num_events=_ints(self.num_events, rows),
            errors={place[row]: message for row, message in sorted(self.errors.items()) if row in place},
        )


def step_table(steps: Sequence[StepStats], start_s: float) -> StepTable:
    """Columns of the steps, times from `start_s`."""
    return StepTable(
        start_s=np.array([step.start_s for step in steps], dtype=np.float64) - start_s,
        end_s=np.array([step.end_s for step in steps], dtype=np.float64) - start_s,
        admission_stop=tuple(step.admission_stop.value for step in steps),
        **{name: np.array(list(map(attrgetter(name), steps)), dtype=np.int64) for name in _INT_COLUMNS},
    )


def _duration(table: RequestTable, end_s: float) -> float:
    """First intended arrival to last token, or to the end of observation where requests were left unfinished."""
    if len(table) == 0:
        return 0.0
    last = end_s
    if len(table.token_times_s) and not (table.outcome == Outcome.UNFINISHED).any():
        last = float(table.token_times_s.max())
    return max(0.0, last - float(table.arrival_s[0]))


def _floats(values: list[float], rows: list[int]) -> Any:
    return np.array([values[row] for row in rows], dtype=np.float64)


def _ints(values: Sequence[int], rows: list[int]) -> Any:
    return np.array([int(values[row]) for row in rows], dtype=np.int64)
