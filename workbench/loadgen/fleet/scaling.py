"""How many replicas a queue asks for."""

from __future__ import annotations

import math
from collections import deque

from workbench.scenario.fleet import Autoscaling


class Autoscaler:
    """The rule of Kubernetes' HorizontalPodAutoscaler for a metric of the pods: enough that each has its target share
    of what waits. One goes when no look within the window wanted it (its stabilisation window), the next no sooner than
    that again (its policy of one pod per period)."""

    def __init__(self, spec: Autoscaling, num_replicas: int) -> None:
        self.spec = spec
        self._looks: deque[tuple[float, int]] = deque([(0.0, num_replicas)])
        self._next_down_s = 0.0

    def num_wanted(self, now_s: float, num_waiting: int, num_replicas: int) -> int:
        """Replicas that there should be; `num_replicas` are there or starting."""
        spec = self.spec
        wanted = math.ceil(num_waiting / spec.waiting_per_replica)
        wanted = min(max(wanted, spec.min_replicas), spec.max_replicas)
        self._looks.append((now_s, wanted))
        while self._looks[0][0] < now_s - spec.scale_down_after_s:
            self._looks.popleft()
        if wanted >= num_replicas:
            return wanted
        if now_s < self._next_down_s or max(number for _, number in self._looks) >= num_replicas:
            return num_replicas
        self._next_down_s = now_s + spec.scale_down_after_s
        return num_replicas - 1
