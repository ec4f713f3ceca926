"""Works on a study's open trials, several at a time, until none is left or it is told to stop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from enum import Enum
from typing import TYPE_CHECKING

from optuna.exceptions import StorageInternalError

from workbench.search.errors import StorageError
from workbench.search.interrupts import uninterrupted
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.trials import OpenTrial, SweepStopped, TrialRecord

if TYPE_CHECKING:
    from workbench.search.study import SweepStudy

_log = logging.getLogger(__name__)

MAX_EQUAL_FAILURES = 5
"""A sweep stops after this many failures of the same kind in a row."""
POLL_S = 1.0
"""Between two looks at what other processes did."""

EvaluateTrial = Callable[[OpenTrial], TrialOutcome]
"""Never raises for a trial's own fault."""


class Ending(Enum):
    """Why a loop ended."""

    DONE = "done"
    """Every trial asked for is finished."""
    DEADLINE = "deadline"
    PAUSED = "paused"
    """Another process stopped the search."""


def run_trials(
    study: SweepStudy,
    lanes: Sequence[EvaluateTrial],
    *,
    on_trial: Callable[[TrialRecord], None] | None = None,
    on_wait: Callable[[int], None] | None = None,
    on_abort: Callable[[], None] | None = None,
    deadline_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ending:
    """Take and evaluate trials, one per lane at a time, and wait for those that other processes have.

    A dead process's trials are queued again on the way. After `deadline_s` (on `clock`) no trial is taken; those that
    run are finished, as most of their cost is paid. `on_wait` hears once how many trials others still work on.

    When an evaluation or `on_trial` raises (Ctrl-C too), `on_abort` has to make the lanes return, and this process's
    trials go back to the queue. Raises `SweepStopped` when failures repeat.
    """
    with ThreadPoolExecutor(max_workers=len(lanes), thread_name_prefix="trial") as pool:
        loop = _Loop(study, pool, lanes, on_trial or (lambda record: None))
        try:
            return loop.run(
                on_wait or (lambda num_open: None), lambda: deadline_s is not None and clock() >= deadline_s
            )
        except BaseException as error:
            if on_abort is not None:
                on_abort()
            if isinstance(error, StorageInternalError):
                # The trials of this process will count as lost, and be retried.
                raise StorageError(
                    f"the study's storage cannot be reached any more ({_cause(error)}). "
                    "Mend that, then go on with --resume, or start the worker again"
                ) from error
            loop.give_back()
            raise


class _Loop:
    """What this process is at: a lane evaluates one trial at a time."""

    def __init__(
        self,
        study: SweepStudy,
        pool: ThreadPoolExecutor,
        lanes: Sequence[EvaluateTrial],
        on_trial: Callable[[TrialRecord], None],
    ) -> None:
        self._study = study
        self._pool = pool
        self._free = list(lanes)
        self._running: dict[Future[TrialOutcome], tuple[OpenTrial, EvaluateTrial]] = {}
        self._on_trial = on_trial
        self._fresh: list[TrialRecord] = []
        self._recovered_s = -math.inf

    def run(self, on_wait: Callable[[int], None], is_late: Callable[[], bool]) -> Ending:
        has_waited = False
        while True:
            self._recover()
            stop = Ending.DEADLINE if is_late() else Ending.PAUSED if self._study.is_paused else None
            if stop is None:
                self._start()
            if self._running:
                self._finish()
                continue
            num_open = self._study.num_open
            if num_open == 0:
                return Ending.DONE
            if stop is not None:
                return stop
            if not has_waited:
                on_wait(num_open)
                has_waited = True
            time.sleep(POLL_S)

    def give_back(self) -> None:
        with uninterrupted():
            for trial, _ in self._running.values():
                self._study.give_back(trial)

    def _recover(self) -> None:
        if time.monotonic() - self._recovered_s >= POLL_S:
            with uninterrupted():
                self._study.recover()
            self._recovered_s = time.monotonic()

    def _start(self) -> None:
        is_left = True
        while self._free and is_left:
            with uninterrupted():
                trial = self._study.take()
                is_left = trial is not None
                if trial is not None:
                    lane = self._free.pop()
                    self._running[self._pool.submit(lane, trial)] = (trial, lane)

    def _finish(self) -> None:
        ended, _ = wait(self._running, timeout=POLL_S, return_when=FIRST_COMPLETED)
        for future in sorted(ended, key=lambda future: self._running[future][0].number):
            trial, lane = self._running[future]
            outcome = future.result()
            with uninterrupted():
                record = self._study.finish(trial, outcome)
                del self._running[future]
                self._free.append(lane)
                self._fresh.append(record)
            self._on_trial(record)
            _check_failures(self._fresh)


def _cause(error: Exception) -> str:
    return (str(error.__cause__ or error).splitlines() or [type(error).__name__])[0][:200]


def _check_failures(fresh: Sequence[TrialRecord]) -> None:
    ours = [record for record in fresh if record.outcome.state is not TrialState.INFEASIBLE]
    if len(ours) == 1 and ours[0].number == 0 and ours[0].outcome.state is TrialState.FAILED:
        _log.warning("the default configuration failed: %s", ours[0].outcome.reason)
    last = ours[-MAX_EQUAL_FAILURES:]
    kinds = {record.outcome.failure_kind for record in last}
    all_failed = all(record.outcome.state is TrialState.FAILED for record in last)
    if len(last) == MAX_EQUAL_FAILURES and all_failed and len(kinds) == 1:
        raise SweepStopped(
            f"{MAX_EQUAL_FAILURES} trials in a row failed in the same way ({last[-1].outcome.reason}). "
            "Mend that, then go on with --resume"
        )
