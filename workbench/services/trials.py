"""Trials of a sweep, each in a worker process that a crash may kill without harm to the sweep.

The worker imports torch once and serves trial after trial; if it dies (out of memory, segmentation fault), the trial
is FAILED with the signal as its reason and the next one gets a new worker.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from engine.errors import ConfigError, ModelLoadError
from workbench.loadgen.errors import RunFailed
from workbench.scenario import Scenario, ScenarioError
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.services.evaluate import RunResult, run_scenario, store_run
from workbench.store.errors import StoreError


class TrialWorker:
    """Evaluates configurations of one scenario, one at a time."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._pool: ProcessPoolExecutor | None = None

    def evaluate(
        self, params: Mapping[str, Any], *, directory: Path | None = None, seed: int | None = None
    ) -> TrialOutcome:
        """Run in the worker; `directory` is where the run is stored (None: it is not)."""
        if self._pool is None:
            # spawn: a forked child would share locks and thread pools that only half exist in it.
            self._pool = ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn"))
        started = time.monotonic()
        try:
            outcome = self._pool.submit(evaluate_trial, self._scenario, dict(params), directory, seed).result()
        except BrokenProcessPool:
            self.close()
            outcome = TrialOutcome(
                state=TrialState.FAILED,
                reason="the worker process died while it ran (out of memory, or a crash in native code)",
                failure_kind="worker_died",
                duration_s=time.monotonic() - started,
            )
        return outcome

    def close(self) -> None:
        """Stop the worker."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def __enter__(self) -> TrialWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def evaluate_trial(
    scenario: Scenario, params: Mapping[str, Any], directory: Path | None, seed: int | None
) -> TrialOutcome:
    """One trial, in whatever process this is called."""
    started = time.monotonic()
    try:
        result = run_scenario(scenario, params, seed=seed)
    except (ConfigError, ScenarioError) as error:
        return TrialOutcome(state=TrialState.INFEASIBLE, reason=str(error), duration_s=time.monotonic() - started)
    except StoreError:
        raise
    except Exception as error:  # whatever breaks a trial is its result, not the sweep's end
        return _failed(error, time.monotonic() - started)
    run_path = None if directory is None else str(store_run(directory, result).name)
    return outcome_of(result, run_path=run_path, duration_s=time.monotonic() - started)


def outcome_of(result: RunResult, *, run_path: str | None, duration_s: float) -> TrialOutcome:
    """A finished run as a trial of its scenario's search."""
    search = result.scenario.search
    metrics = result.summary.overall
    reasons = result.verdict.messages
    return TrialOutcome(
        state=TrialState.COMPLETE,
        reason="; ".join(reasons) or None,
        objective=metrics.value(search.objective) if search is not None else None,
        constraints=_constraints(result),
        metrics=metrics.to_dict(),
        classes={name: each.to_dict() for name, each in result.summary.classes.items()},
        verdict=result.verdict.status.value,
        fingerprint=result.record.decision_fingerprint,
        binding=None if result.binding is None else result.binding.to_dict(),
        engine=dict(result.record.engine),
        run_path=run_path,
        duration_s=duration_s,
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
