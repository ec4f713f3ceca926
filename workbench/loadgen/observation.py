"""Collects what happens to each request during a run and turns it into the record. One owner: the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.step_log import STOPS, StepLog
from workbench.loadgen.token_times import TokenTimes
from workbench.metrics.records import Outcome, PartialRun, RequestTable, RunRecord, StepTable
from workbench.workload.records import Workload

_FINISHED_WELL = ("stop", "length")


class Observation:
    """Per-row lists, indexed by the workload's rows. Times are seconds from the start of the run."""

    def __init__(self, workload: Workload, token_times: TokenTimes) -> None:
        count = len(workload)
        self.workload = workload
        self.issued: list[int] = []
        self.arrival_s = [float("nan")] * count
        self.sent_s = [float("nan")] * count
        self.first_scheduled_s = [float("nan")] * count
        self.token_times = token_times
        self.num_events: dict[int, int] = {}
        """Row -> events that brought its tokens, where they are not one each."""
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
        counts, times_s = self.token_times.columns(rows)
        ends = np.cumsum(counts)
        first_s, last_s = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        some = counts > 0
        first_s[some], last_s[some] = times_s[(ends - counts)[some]], times_s[ends[some] - 1]
        return PartialRun(
            now_s=now_s,
            num_requests=len(self.workload),
            class_names=self.workload.class_names,
            class_index=self.workload.class_index[index],
            arrival_s=_floats(self.arrival_s, rows),
            first_token_s=first_s,
            last_token_s=last_s,
            num_output_tokens=counts,
            max_output_tokens=self.workload.max_output_tokens[index],
            has_ended=ended,
            has_completed=ended & (outcome == Outcome.COMPLETED),
        )

    def record(
        self, steps: StepLog, *, start_s: float, end_s: float, clock: str, engine: Mapping[str, Any]
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
        counts, times_s = self.token_times.columns(rows)
        num_events = counts.copy()
        place = {row: position for position, row in enumerate(rows)}
        for row, num in self.num_events.items():
            if row in place:
                num_events[place[row]] = num
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
            token_times_s=times_s,
            token_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            num_events=num_events,
            errors={place[row]: message for row, message in sorted(self.errors.items()) if row in place},
        )


def step_table(steps: StepLog, start_s: float) -> StepTable:
    """Columns of the steps, times from `start_s`."""
    times_s, columns = steps.times_s() - start_s, steps.columns()
    names = [stop.value for stop in STOPS]
    del columns["step_index"]
    return StepTable(
        start_s=times_s[:, 0],
        end_s=times_s[:, 1],
        admission_stop=tuple(names[code] for code in columns.pop("admission_stop").tolist()),
        **columns,
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
