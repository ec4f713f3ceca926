"""When a stop rule is asked: some thirty times a run, since each answer looks at all requests."""

from __future__ import annotations

_MOST = 32


class Questions:
    """Counts what comes and goes."""

    def __init__(self, num_requests: int) -> None:
        self._num_requests = num_requests
        self._num_asked = 0

    def is_due(self, num_events: int) -> bool:
        """Is it time to ask again, now that `num_events` requests came or went? Each comes and goes once."""
        if (num_events - self._num_asked) * _MOST < 2 * self._num_requests:
            return False
        self._num_asked = num_events
        return True
