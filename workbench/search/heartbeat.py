"""Signs of life of the trials that this process works on."""

from __future__ import annotations

import logging
import threading

from optuna.storages import BaseStorage
from optuna.storages._heartbeat import BaseHeartbeat

_log = logging.getLogger(__name__)


class Heartbeat:
    """A thread that says "still at work" for every trial it was told of; none where the storage records no such signs.

    A sign that cannot be written (a server restarts) is tried again at the next beat: the grace period forgives some.
    """

    def __init__(self, storage: BaseStorage) -> None:
        self._storage = storage
        self._interval_s = storage.get_heartbeat_interval() if isinstance(storage, BaseHeartbeat) else None
        self._trials: set[int] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, trial_id: int) -> None:
        """Beat once now, then until `stop`; to be called before the trial runs, so that it never runs without."""
        if self._interval_s is None:
            return
        self._storage.record_heartbeat(trial_id)
        with self._lock:
            self._trials.add(trial_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
                self._thread.start()

    def stop(self, trial_id: int) -> None:
        with self._lock:
            self._trials.discard(trial_id)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._interval_s):
            with self._lock:
                trials = sorted(self._trials)
            for trial_id in trials:
                try:
                    self._storage.record_heartbeat(trial_id)
                except Exception as error:
                    _log.warning("a sign of life could not be written: %s", type(error).__name__)
