"""The in-process loop: feeds an engine core from a workload, on whatever clock it is given.

The driver is the engine's own front door, so a request that becomes due while a step runs counts as handed over at
its intended arrival: the wait for the step to end is queue time. Only a concurrency cap, or a late wake-up, is client
lag.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from engine.clock import Clock, VirtualClock
from engine.errors import RequestRefused
from engine.outputs import RequestOutput
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.step_log import StepLog
from workbench.loadgen.errors import RunFailed
from workbench.loadgen.observation import Observation
from workbench.loadgen.pacing import Pacing, pacing_of
from workbench.loadgen.questions import Questions
from workbench.loadgen.target import Progress, ProgressCallback
from workbench.loadgen.token_times import StepRecorder, StepTimes
from workbench.metrics.records import Outcome, RunRecord, StopRule
from workbench.workload.records import Workload

_STEPS_PER_REPORT = 32
_PATIENCE = 16
"""Waiting requests passed over before the search for newly admitted ones ends."""


class Core(Protocol):
    """What the driver needs of an engine core."""

    @property
    def step_stats(self) -> StepLog:
        """Grows by one per step that scheduled something; the driver may clear it."""
        ...

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises `engine.errors.RequestRefused` for one that can never be served."""
        ...

    def has_unfinished(self) -> bool: ...

    def step(self, until_s: float = math.inf) -> Sequence[RequestOutput]:
        """Schedule, execute, update; returns the news. A core on a virtual clock may take further steps that begin
        before `until_s` on the clock, if they bring no news."""
        ...

    def settle(self) -> Sequence[RequestOutput]:
        """News held back until now."""
        ...

    def abort(self, request_id: str) -> None: ...


def drive(
    core: Core,
    workload: Workload,
    clock: Clock,
    *,
    engine: Mapping[str, Any] | None = None,
    deadline_s: float | None = None,
    on_progress: ProgressCallback | None = None,
    stop: StopRule | None = None,
) -> RunRecord:
    """Issue every request of the workload and step the core until all have ended, until `deadline_s`, or until `stop`,
    asked some thirty times, gives a reason (the record's `stopped`).

    At the end what is open is aborted and stays UNFINISHED; requests not due by then were not issued. Raises
    `RunFailed` with the partial record when a step raises; `engine` is stored in the record as it is.
    """
    run = Run(core, workload, clock, pacing_of(workload), deadline_s, on_progress, stop)
    described = dict(engine or {})
    try:
        run.to_end()
    except CoreBroken as broken:
        error = broken.__cause__
        run.take(core.settle())
        message = f"the engine broke after {len(core.step_stats)} steps: {type(error).__name__}: {error}"
        raise RunFailed(message, run.record(described)) from error
    return run.record(described)


class CoreBroken(Exception):
    """The core raised; `__cause__` says what."""


class Run:
    """State of one run. Times inside are seconds from its start."""

    def __init__(
        self,
        core: Core,
        workload: Workload,
        clock: Clock,
        pacing: Pacing,
        deadline_s: float | None = None,
        on_progress: ProgressCallback | None = None,
        stop: StopRule | None = None,
        observed: tuple[Observation, StepRecorder] | None = None,
    ) -> None:
        """`observed`: where to tell what happens, if others are told there too."""
        self.core, self.workload, self.clock = core, workload, clock
        self.deadline_s, self.on_progress, self.stop = deadline_s, on_progress, stop
        self.questions = Questions(len(workload))
        self.stopped: str | None = None
        self.pacing = pacing
        if observed is None:
            times = StepTimes(len(workload))
            observed = Observation(workload, times), times
        self.seen, self.times = observed
        self.cap = workload.max_concurrency if workload.max_concurrency is not None else len(workload) + 1
        self.rows: dict[str, int] = {}  # open requests: id -> row
        self.unscheduled: dict[int, Request] = {}  # row -> request not yet part of a step, in order of sending
        core.step_stats.clear()  # the record has this run's steps only
        self.start_s = clock.now()
        self.awake_s = 0.0  # never earlier than this again
        self.busy_until_s = 0.0  # end of the last step
        self.num_free_while_busy = self.cap  # slots under the cap during the last step

    def now_s(self) -> float:
        return max(self.clock.now() - self.start_s, self.awake_s)

    def to_end(self) -> None:
        num_steps = 0
        while True:
            now_s = self.now_s()
            if self._is_over(now_s):
                self._stop(now_s)
                break
            self._send_due(now_s)
            if self.core.has_unfinished():
                self.step(self._next_word_s())
                num_steps += 1
                if num_steps % _STEPS_PER_REPORT == 0:
                    self._report()
            else:
                due_s = self.pacing.next_due_s()
                if due_s is None:
                    break
                wake_s = due_s if self.deadline_s is None else min(due_s, self.deadline_s)
                self.clock.sleep_until(self.start_s + wake_s)
                self.awake_s = wake_s  # start + wake - start may round to less than wake
        self._report()

    def _send_due(self, now_s: float) -> None:
        free_at_arrival = self.num_free_while_busy
        while len(self.rows) < self.cap:
            due_s = self.pacing.next_due_s()
            if due_s is None or due_s > now_s:
                break
            row, arrival_s = self.pacing.take()
            during_step = arrival_s <= self.busy_until_s and free_at_arrival > 0
            free_at_arrival -= 1
            self.send(row, arrival_s, arrival_s if during_step else now_s)
        self.num_free_while_busy = self.cap - len(self.rows)

    def send(self, row: int, arrival_s: float, sent_s: float) -> None:
        """Hand a row's request to the core."""
        self.seen.issue(row, arrival_s, sent_s)
        try:
            self.hand_over(row, self.request(row, arrival_s, int(self.workload.max_output_tokens[row])))
        except RequestRefused as refusal:
            self.seen.end(row, Outcome.REJECTED, str(refusal))
            self.pacing.ended(self.now_s(), row)

    def hand_over(self, row: int, request: Request) -> None:
        """Queue a request in the core. Raises `RequestRefused`."""
        try:
            self.core.add_request(request)
        except RequestRefused:
            raise
        except Exception as error:
            raise CoreBroken from error
        self.rows[request.request_id] = row
        self.unscheduled[row] = request

    def request(self, row: int, arrival_s: float, max_tokens: int) -> Request:
        """A row's request as the core takes it."""
        return Request(
            self.workload.request_ids[row],
            self.workload.prompt_token_ids(row),
            SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            arrival_time_s=self.start_s + arrival_s,
            priority=int(self.workload.priority[row]),
        )

    def step(self, until_s: float) -> None:
        """One step of the core, or as many without news as begin before `until_s`."""
        begin_s = self.now_s()
        try:
            outputs = self.core.step(self.start_s + until_s)
        except Exception as error:
            self._note_step_ends(len(self.core.step_stats))  # steps before the one that broke gave tokens
            raise CoreBroken from error
        now_s = self.busy_until_s = self.now_s()
        if self.unscheduled:
            self._note_first_scheduled(begin_s)
        num_steps = len(self.core.step_stats)
        self._note_step_ends(num_steps - 1)
        if num_steps > len(self.times.step_end_s):
            self.times.step_end_s.append(now_s)
        self.take(outputs)

    def _note_step_ends(self, num_steps: int) -> None:
        """Note the ends of the first `num_steps` steps where they are not known yet."""
        ends_s, steps = self.times.step_end_s, self.core.step_stats
        for step in range(len(ends_s), num_steps):
            ends_s.append(steps.end_s(step) - self.start_s)

    def _next_word_s(self) -> float:
        """The next moment at which this loop will have something to do whatever the core does."""
        due_s = self.pacing.next_due_s() if len(self.rows) < self.cap else None
        if due_s is None:
            due_s = math.inf
        return due_s if self.deadline_s is None else min(due_s, self.deadline_s)

    def take(self, outputs: Sequence[RequestOutput]) -> None:
        """News from the core."""
        seen, rows, now_s = self.seen, self.rows, self.busy_until_s
        for output in outputs:
            row = rows.get(output.request_id)
            if row is None:
                continue
            count = len(output.new_token_ids)
            if count:
                self.times.add(row, output.first_step, count)
                seen.num_output_tokens += count
            if output.finish_reason is not None:
                self.unscheduled.pop(row, None)
                del rows[output.request_id]
                self._finish(row, output, output.finish_reason, now_s)

    def _finish(self, row: int, output: RequestOutput, reason: str, now_s: float) -> None:
        self.seen.num_cached_tokens[row] = output.num_cached_tokens
        self.seen.num_preemptions[row] = output.num_preemptions
        self.seen.finish(row, reason)
        self.pacing.ended(now_s, row)

    def _note_first_scheduled(self, step_start_s: float) -> None:
        """A request that knows its prefix hit has been admitted; those that do not are still waiting.

        Mostly the oldest are admitted, so the search ends early; where more are missing than the engine says are
        waiting, the order was another one and all are looked at.
        """
        self._note_admitted(step_start_s, patience=_PATIENCE)
        steps = self.core.step_stats
        if len(steps) and len(self.unscheduled) > steps.last_num_waiting():
            self._note_admitted(step_start_s, patience=len(self.unscheduled))

    def _note_admitted(self, step_start_s: float, *, patience: int) -> None:
        admitted = []
        for row, request in self.unscheduled.items():
            if request.num_cached_tokens is not None:
                admitted.append(row)
            elif (patience := patience - 1) < 0:
                break
        for row in admitted:
            del self.unscheduled[row]
            self._begin(row, step_start_s)

    def _begin(self, row: int, when_s: float) -> None:
        self.seen.first_scheduled_s[row] = when_s

    def _is_over(self, now_s: float) -> bool:
        """The deadline has come, or the stop rule says so; it is asked when so many requests came or went."""
        if self.deadline_s is not None and now_s >= self.deadline_s:
            return True
        if self.stop is None or not self.questions.is_due(len(self.seen.issued) + self.seen.num_ended):
            return False
        self.take(self.core.settle())
        self.stopped = self.stop(self.seen.so_far(now_s))
        return self.stopped is not None

    def _stop(self, now_s: float) -> None:
        """What is due but held back was issued too; what is open is aborted."""
        end_s = now_s if self.deadline_s is None else min(now_s, self.deadline_s)
        while (due_s := self.pacing.next_due_s()) is not None and due_s < end_s:
            row, arrival_s = self.pacing.take()
            self.seen.issue(row, arrival_s, float("nan"))
        self.take(self.core.settle())
        for request_id in list(self.rows):
            self.core.abort(request_id)

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(
                Progress(
                    elapsed_s=self.now_s(),
                    num_requests=len(self.workload),
                    num_sent=len(self.seen.issued),
                    num_ended=self.seen.num_ended,
                    num_output_tokens=self.seen.num_output_tokens,
                )
            )

    def record(self, engine: Mapping[str, Any]) -> RunRecord:
        clock = "virtual" if isinstance(self.clock, VirtualClock) else "wall"
        record = self.seen.record(
            self.core.step_stats, start_s=self.start_s, end_s=self.now_s(), clock=clock, engine=engine
        )
        return replace(record, stopped=self.stopped)
