"""Trials of a sweep, each in a worker process that a crash may kill without harm to the sweep.

The worker imports torch once and serves trial after trial; if it dies (out of memory, segmentation fault), the trial
is FAILED with the signal as its reason and the next one gets a new worker. The worker in turn ends with the sweep,
however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any

from engine.errors import ConfigError, ModelLoadError
from workbench.loadgen.errors import RunFailed
from workbench.metrics.peaks import Peaks
from workbench.scenario import Scenario, ScenarioError
from workbench.scenario.search import RATE_OBJECTIVES
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.services.evaluate import RunResult, run_scenario, store_run
from workbench.services.rate_objective import objective_at
from workbench.services.rate_trial import RateHints, run_for_rate
from workbench.store.errors import StoreError

WORKER_DIED = "worker_died"
"""Kind of the failure whose cause lies outside of Python."""


class TrialWorker:
    """Evaluates configurations of one scenario, one at a time."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._has_ended = False
        self._runs_server = scenario.target.kind == "endpoint" and scenario.target.launch is not None

    @property
    def pid(self) -> int | None:
        """Of the worker process, while there is one."""
        return None if self._process is None else self._process.pid

    def evaluate(
        self,
        params: Mapping[str, Any],
        *,
        directory: Path | None = None,
        seed: int | None = None,
        hints: RateHints | None = None,
    ) -> TrialOutcome:
        """Run in the worker; `directory` is where the run is stored (None: it is not). Raises `StoreError`."""
        started = time.monotonic()
        try:
            connection = self._connection or self._start()
            connection.send((dict(params), directory, seed, hints))
            answer = connection.recv()
        except (EOFError, OSError):  # the other end is gone
            return TrialOutcome(
                state=TrialState.FAILED,
                reason=f"the worker process died while it ran ({self._cause_of_death()})",
                failure_kind=WORKER_DIED,
                duration_s=time.monotonic() - started,
            )
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, TrialOutcome)
        return answer

    def end(self) -> None:
        """Make an evaluation in another thread return, as one whose worker died, and every later one."""
        self._has_ended = True
        if (process := self._process) is not None:
            if self._runs_server:  # so that it is gone, and its GPU free, when we are
                process.terminate()
                process.join(GRACE_S)
            process.kill()

    def close(self) -> None:
        """End the worker; a trial that it still runs is lost."""
        if self._process is not None and self._connection is not None:
            self._process.kill()  # before its pipe goes, whose end it would report
            self._process.join()
            self._connection.close()
        self._process = self._connection = None

    def __enter__(self) -> TrialWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self) -> Connection:
        # spawn: a forked child would share locks and thread pools that only half exist in it.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve_trials, args=(theirs, self._scenario), name="trials", daemon=True)
        with _without_interrupts():
            process.start()
        theirs.close()  # or its end would not be noticed
        self._process, self._connection = process, ours
        if self._has_ended:
            process.kill()
        return ours

    def _cause_of_death(self) -> str:
        process = self._process
        code = None
        if process is not None:
            process.join(_DEATH_S)
            code = process.exitcode
        self.close()
        if code == -signal.SIGKILL:
            return "killed by SIGKILL: out of memory?"
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}: a crash in native code?"
        return "no exit code" if code is None else f"exit code {code}"


GRACE_S = 30.0
"""For a worker to stop the server that it started: longer than that server has."""
_DEATH_S = 5.0
"""From the end of a process's last pipe to its exit code."""


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started inside never sees Ctrl-C, which a terminal sends to all: the parent ends the worker.
    The parent's own Ctrl-C is delivered when the block ends."""
    resource_tracker.ensure_running()  # starting it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve_trials(connection: Connection, scenario: Scenario) -> None:
    """The worker: answers (parameters, directory, seed, hints) with an outcome, or an error not the trial's."""
    end_with_parent()
    signal.signal(signal.SIGTERM, _leave)
    while True:
        try:
            params, directory, seed, hints = connection.recv()
        except (EOFError, OSError):
            return  # nobody asks any more
        try:
            answer: TrialOutcome | Exception = evaluate_trial(scenario, params, directory, seed, hints)
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = error
        try:
            connection.send(answer)
        except OSError:
            return  # nobody waits for it any more


def _leave(number: int, frame: FrameType | None) -> None:
    """Unwind, so that what the trial started is stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


def end_with_parent() -> None:
    """Watch the process that started this one: killed, it leaves nobody to wait for a worker's answer."""
    threading.Thread(target=_wait_for_parent, name="parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def evaluate_trial(
    scenario: Scenario,
    params: Mapping[str, Any],
    directory: Path | None,
    seed: int | None,
    hints: RateHints | None = None,
) -> TrialOutcome:
    """One trial, in whatever process this is called."""
    started = time.monotonic()
    try:
        outcome, result = _measured(scenario, params, seed, hints or RateHints())
    except (ConfigError, ScenarioError) as error:
        return TrialOutcome(state=TrialState.INFEASIBLE, reason=str(error), duration_s=time.monotonic() - started)
    except StoreError:
        raise
    except Exception as error:  # whatever breaks a trial is its result, not the sweep's end
        return _failed(error, time.monotonic() - started)
    run_path = None if directory is None else str(store_run(directory, result).name)
    return replace(outcome, run_path=run_path, duration_s=time.monotonic() - started)


def _measured(
    scenario: Scenario, params: Mapping[str, Any], seed: int | None, hints: RateHints
) -> tuple[TrialOutcome, RunResult]:
    if scenario.search is not None and scenario.search.objective in RATE_OBJECTIVES:
        found = run_for_rate(scenario, params, seed=seed, hints=hints)
        rate = found.bracket.passed
        value = None if rate is None else objective_at(scenario, params, found.run.workload, rate)
        outcome = outcome_of(found.run, objective=value)
        return replace(outcome, rate=found.bracket.to_dict(), peaks=asdict(found.peaks)), found.run
    result = run_scenario(scenario, params, seed=seed)
    peaks = Peaks.of(result.record)
    names = {} if scenario.search is None else scenario.search.objectives
    values = {name: result.summary.overall.value(name) for name in names}
    outcome = outcome_of(result, objective=next(iter(values.values()), None))
    return (
        replace(
            outcome,
            objectives=values if len(values) > 1 else None,
            peaks=None if peaks is None else asdict(peaks),
        ),
        result,
    )


def outcome_of(result: RunResult, *, objective: float | None) -> TrialOutcome:
    """A finished run as a trial."""
    metrics = result.summary.overall
    reasons = result.verdict.messages
    return TrialOutcome(
        state=TrialState.COMPLETE,
        reason="; ".join(reasons) or None,
        objective=objective,
        constraints=_constraints(result),
        limits=[limit.to_dict() for limit in result.summary.limits],
        metrics=metrics.to_dict(),
        classes={name: each.to_dict() for name, each in result.summary.classes.items()},
        verdict=result.verdict.status.value,
        fingerprint=result.record.decision_fingerprint,
        binding=None if result.binding is None else result.binding.to_dict(),
        engine=dict(result.record.engine),
        requests=result.workload.summary.account.to_dict(),
    )


def _constraints(result: RunResult) -> dict[str, float]:
    """Limit -> shortfall; a limit that several classes have on their own is numbered from the second on."""
    found: dict[str, float] = {}
    for limit in result.summary.limits:
        name, number = limit.limit.name, 2
        while name in found:
            name, number = f"{limit.limit.name}_{number}", number + 1
        found[name] = limit.shortfall
    return found


def _failed(error: Exception, duration_s: float) -> TrialOutcome:
    cause = error.__cause__ if isinstance(error, RunFailed) and error.__cause__ is not None else error
    kind = "model" if isinstance(error, ModelLoadError) else type(cause).__name__
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return TrialOutcome(state=TrialState.FAILED, reason=text, failure_kind=kind, duration_s=duration_s)
