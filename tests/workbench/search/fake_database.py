"""A storage with signs of life and a clock that the test moves."""

from __future__ import annotations

from typing import Any

from optuna.storages import InMemoryStorage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.trial import TrialState

from workbench.search.storage import retry_lost_trial

GRACE_S = 20.0


class FakeDatabase(InMemoryStorage, BaseHeartbeat):  # type: ignore[misc]
    """What a database is to a study, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._beats: dict[int, float] = {}

    def record_heartbeat(self, trial_id: int) -> None:
        self._beats[trial_id] = self.now_s

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        running = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        beats = {trial._trial_id: self._beats.get(trial._trial_id) for trial in running}
        return [trial_id for trial_id, beat in beats.items() if beat is not None and self.now_s - beat > GRACE_S]

    def get_heartbeat_interval(self) -> int:
        return 10**6  # the thread never beats: the test's clock alone decides

    def get_heartbeat_stale_trial_callback(self) -> Any:
        return retry_lost_trial
