"""A process among many that share a study: takes trials, evaluates them, ends when none is left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from workbench.scenario import Scenario, ScenarioError
from workbench.search.loop import Ending, run_trials
from workbench.search.storage import HEARTBEAT_S, close_storage, has_heartbeats, open_url, redacted
from workbench.search.trials import SweepStopped, TrialRecord
from workbench.services.lanes import Lanes, is_measured
from workbench.services.shared_study import join_study


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEvents:
    """What a skin may want to show; every hook may be left out."""

    on_start: Callable[[Scenario, int, list[str]], None] = lambda scenario, num_open, warnings: None
    on_trial: Callable[[TrialRecord], None] = lambda record: None
    on_wait: Callable[[int], None] = lambda num_open: None


@dataclass(slots=True, kw_only=True)
class WorkResult:
    """What this process did."""

    study: str
    records: list[TrialRecord] = field(default_factory=list)
    num_open: int = 0
    """Trials of the study that are left."""
    stopped: str | None = None
    """Why it ended before the study was done."""
    has_failed: bool = False
    """It ended for a fault of this process."""

    def to_json(self) -> dict[str, Any]:
        """The object of `workbench worker --json`."""
        return {
            "study": self.study,
            "trials": [record.number for record in self.records],
            "num_open": self.num_open,
            "stopped": self.stopped,
        }


def work(
    name: str,
    storage: str,
    *,
    workers: int = 1,
    heartbeat_s: int = HEARTBEAT_S,
    grace_s: int | None = None,
    events: WorkEvents | None = None,
) -> WorkResult:
    """Work on a study that `workbench sweep --storage` started, `workers` trials at a time, until it is done or paused.

    Raises `ScenarioError` for a study that is not there or cannot be worked on here, `StorageError` for a storage that
    cannot be opened.
    """
    events = events or WorkEvents()
    opened = open_url(storage, heartbeat_s=heartbeat_s, grace_s=grace_s or 4 * heartbeat_s)
    if not has_heartbeats(opened):
        close_storage(opened)
        raise ScenarioError(
            f"--storage {redacted(storage)}: nobody would notice there that a worker died. Keep a shared study in a "
            "database, for example postgresql://user@host/database"
        )
    try:
        joined = join_study(name, opened)
    except BaseException:
        close_storage(opened)
        raise
    result = WorkResult(study=name)
    warnings = []
    if joined.archive is None:
        warnings.append(
            "this machine does not see the study's folder of artefacts: results count, the stored runs are dropped. "
            "Start the sweep with --artifacts on a shared folder to keep them"
        )
    if is_measured(joined.scenario):
        warnings.append(
            f"trials on an {joined.scenario.target.kind} engine are timed by the wall clock: those on one machine take "
            "turns, and machines that differ give figures that do"
        )

    def on_trial(record: TrialRecord) -> None:
        result.records.append(record)
        events.on_trial(record)

    with (
        closing(joined.study) as study,
        Lanes(joined.scenario, joined.archive, workers, is_shared=True) as lanes,
    ):
        events.on_start(joined.scenario, study.num_open, warnings)
        try:
            ending = run_trials(
                study, lanes.evaluators(), on_trial=on_trial, on_wait=events.on_wait, on_abort=lanes.close
            )
            if ending is Ending.PAUSED:
                result.stopped = "the sweep was stopped; workbench sweep --resume goes on with it"
        except SweepStopped as stop:
            result.stopped, result.has_failed = str(stop), True
        except KeyboardInterrupt:
            result.stopped, result.has_failed = "interrupted; its trials went back to the queue", True
        result.num_open = study.num_open
    return result
