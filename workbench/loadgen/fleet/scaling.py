"""How many replicas a queue asks for."""

from __future__ import annotations

import math
from collections import deque

from workbench.scenario.fleet import Autoscaling


class Autoscaler:
    """The rule of Kubernetes' HorizontalPodAutoscaler for a metric of the pods: enough that each has its target share
    of what waits; fewer only when no look within the window wanted more (its stabilisation window)."""

    def __init__(self, spec: Autoscaling, num_replicas: int) -> None:
        self.spec = spec
        self._looks: deque[tuple[float, int]] = deque([(0.0, num_replicas)])

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
        return min(num_replicas, max(number for _, number in self._looks))
