"""What evaluates the trials of a sweep, several at a time: one worker process per lane."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from workbench.scenario import Scenario
from workbench.search.artifacts import RunArchive
from workbench.search.loop import EvaluateTrial
from workbench.search.outcome import TrialOutcome
from workbench.search.trials import OpenTrial
from workbench.services.foresight import hints_for, marked_if_equal, marked_if_fewer, settle
from workbench.services.trials import WORKER_DIED, TrialWorker
from workbench.store.atomic import TEMPORARY_PREFIX
from workbench.store.errors import StoreError
from workbench.store.studies import trial_directory

_POLL_S = 0.2


class Lanes:
    """`num_lanes` worker processes for one scenario; what they store goes into the archive (None: nowhere).

    In a study that is shared, trials on the wall clock take turns with those of the machine's other workers, as they
    would slow each other.
    """

    def __init__(self, scenario: Scenario, archive: RunArchive | None, num_lanes: int, *, is_shared: bool) -> None:
        self._scenario = scenario
        self._archive = archive
        self._takes_turns = is_shared and is_measured(scenario)
        self._is_closed = threading.Event()
        self.workers = [TrialWorker(scenario) for _ in range(num_lanes)]
        self.resolves_ties = False
        """Trials are resolved although they may only equal the best so far."""

    def evaluators(self) -> list[EvaluateTrial]:
        return [partial(self._evaluate, worker) for worker in self.workers]

    def close(self) -> None:
        """End the worker processes; evaluations that still run return at once, with outcomes that mean nothing."""
        self._is_closed.set()
        for worker in self.workers:
            worker.end()

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _evaluate(self, worker: TrialWorker, trial: OpenTrial) -> TrialOutcome:
        settled = settle(self._scenario, trial.params, trial.finished)
        if settled is not None:
            return settled
        outcome = marked_if_fewer(self._run(worker, trial), trial.finished)
        return marked_if_equal(self._scenario, outcome, trial.finished)

    def _run(self, worker: TrialWorker, trial: OpenTrial) -> TrialOutcome:
        with self._own_turn():
            if self._archive is None:
                return self._twice(worker, trial, None)
            with _scratch(self._archive.folder) as folder:
                run = trial_directory(folder, trial.number)
                outcome = self._twice(worker, trial, run)
                if outcome.run_path is None or self._is_closed.is_set():
                    return outcome
                try:
                    self._archive.put(trial.handle, run)
                except OSError as error:
                    raise _not_writable(self._archive.folder, error) from error
                return outcome

    def _twice(self, worker: TrialWorker, trial: OpenTrial, run: Path | None) -> TrialOutcome:
        """A worker may be killed for what its neighbours did (memory): only the second death is the trial's own."""
        hints = hints_for(self._scenario, trial.params, trial.finished, resolves_ties=self.resolves_ties)
        outcome = worker.evaluate(trial.params, directory=run, hints=hints)
        if outcome.failure_kind != WORKER_DIED or self._is_closed.is_set():
            return outcome
        if run is not None:
            shutil.rmtree(run, ignore_errors=True)
        return worker.evaluate(trial.params, directory=run, hints=hints)

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        if not self._takes_turns:
            yield
            return
        with (Path(tempfile.gettempdir()) / f"llm-serving-workbench-{os.getuid()}.lock").open("w") as stream:
            while not self._is_closed.is_set():
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_POLL_S)
            yield


def is_measured(scenario: Scenario) -> bool:
    """True where trials are timed by the wall clock of the machine that they run on."""
    return scenario.target.kind != "simulated"


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder on the archive's disk, so that a stored run is moved there rather than copied."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=parent, ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:
        raise _not_writable(parent, error) from error


def _not_writable(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"{folder}: cannot be written ({error.strerror or error})")
