"""How many replicas: the smallest fleet that holds every limit when it is simulated at the target rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError
from workbench.metrics.attainment import SloPolicy
from workbench.metrics.certainty import HopelessRun
from workbench.metrics.saturation import saturation_of
from workbench.metrics.summary import RunSummary, summarize
from workbench.plan.instance import p95s
from workbench.scenario.schema import Scenario
from workbench.services.evaluate import deadline_of
from workbench.services.targets import build_target
from workbench.workload.rate import at_rate
from workbench.workload.records import Workload

HEADROOM = 0.2
"""Share of the fleet's capacity that is kept free."""
_MOST_REPLICAS = 512
SHORT_S = 60.0
"""A fleet run whose arrivals span less says little about a steady state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """One simulation of a fleet."""

    replicas: int
    rate_per_s: float
    holds: bool
    reason: str | None
    latency: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {
            "replicas": self.replicas,
            "rate_per_s": self.rate_per_s,
            "holds": self.holds,
            "reason": self.reason,
            **self.latency,
        }


class FleetSizer:
    """Simulates fleets; each number of replicas and rate once."""

    def __init__(self, scenario: Scenario, workload: Workload, policy: SloPolicy) -> None:
        self._scenario, self._workload, self._policy = scenario, workload, policy
        self.runs: dict[tuple[int, float], FleetRun] = {}

    def minimum(self, rate_per_s: float, guess: int) -> int:
        """Smallest number that holds at a rate while one fewer does not. Raises `ConfigError` where none does."""
        return smallest(lambda replicas: self.run(replicas, rate_per_s).holds, guess)

    def run(self, replicas: int, rate_per_s: float) -> FleetRun:
        """A fleet at a rate."""
        key = (replicas, rate_per_s)
        if key not in self.runs:
            self.runs[key] = self._simulate(replicas, rate_per_s)
        return self.runs[key]

    def _simulate(self, replicas: int, rate_per_s: float) -> FleetRun:
        workload = at_rate(self._workload, rate_per_s)
        target = build_target(fleet_of(self._scenario, replicas), {})
        try:
            rule = HopelessRun.of(self._policy, workload.class_names, workload.class_index)
            record = target.run(workload, deadline_s=deadline_of(workload), stop=rule)
        finally:
            target.close()
        if record.stopped is not None:
            return FleetRun(replicas=replicas, rate_per_s=rate_per_s, holds=False, reason=record.stopped, latency={})
        summary = summarize(record, self._policy)
        saturation = saturation_of(record.requests)
        reason = _first_missed(summary) or (None if saturation is None else saturation.message)
        return FleetRun(
            replicas=replicas, rate_per_s=rate_per_s, holds=reason is None, reason=reason, latency=p95s(summary)
        )


def fleet_of(scenario: Scenario, replicas: int) -> Scenario:
    """The scenario on so many replicas."""
    return scenario.model_copy(update={"target": scenario.target.model_copy(update={"replicas": replicas})})


def smallest(holds: Callable[[int], bool], guess: int) -> int:
    """The number at which `holds` turns true, from a guess; what is one below was tried unless it is 0.

    Steps double until the turn is between two numbers, then halve. Raises `ConfigError` where none holds.
    """
    low, high, step = 0, max(1, guess), 1
    while not holds(high):
        if high >= _MOST_REPLICAS:
            raise ConfigError(
                f"plan: {high} replicas do not hold the limits either: a single request may miss them. Relax the "
                "SLO or choose a faster GPU"
            )
        low, high, step = high, min(high + step, _MOST_REPLICAS), step * 2
    step = 1
    while low == 0 and high > 1:
        below = max(1, high - step)
        if holds(below):
            high, step = below, step * 2
        else:
            low = below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def guess_of(rate_per_s: float, instance_rate_per_s: float) -> int:
    """By division; a little of pooling's gain is left to the search."""
    return max(1, math.ceil(rate_per_s / instance_rate_per_s))


def _first_missed(summary: RunSummary) -> str | None:
    for result in summary.limits:
        if not result.is_met:
            return f"{result.limit.name}: {result.fraction or 0.0:.1%} keep it, {result.required_fraction:.1%} must"
    return None
