"""How many replicas: the smallest fleet that holds every limit when it is simulated under the load asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ConfigError
from workbench.metrics.attainment import LimitResult
from workbench.metrics.certainty import HopelessRun
from workbench.metrics.saturation import saturation_of
from workbench.metrics.summary import RunSummary, summarize
from workbench.plan.instance import Instance, p95s
from workbench.plan.task import Task
from workbench.records.figures import four_digits
from workbench.services.evaluate import deadline_of
from workbench.services.targets import build_target
from workbench.workload.rate import remember_prompts
from workbench.workload.records import Workload

HEADROOM = 0.2
"""Share of the fleet's capacity that is kept free."""
_MOST_REPLICAS = 512
_SHORT_S = 10.0
_SHORT_STAYS = 3.0
"""Loads that last less than this many times a request's stay, or less than `_SHORT_S`, reach no steady state."""
_ENOUGH_DRAWS = 0.8
"""Share of the draws of a load that a fleet must hold in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """A number of replicas under one load, in every draw of it that was needed to tell."""

    replicas: int
    scale: float
    """Times the load asked for."""
    rate_per_s: float
    """Offered; by users, what came of it."""
    num_draws: int
    num_held: int
    reason: str | None
    """Why the first draw that failed did."""
    latency: Mapping[str, float]
    """P95s of the first draw, s; empty where it was ended early."""
    limits: tuple[LimitResult, ...]
    span_s: float
    """Of the arrivals."""

    @property
    def holds(self) -> bool:
        return self.num_held >= _ENOUGH_DRAWS * self.num_draws

    @property
    def is_contested(self) -> bool:
        """Some draws held and some did not."""
        return 0 < self.num_held < self.num_draws

    def to_dict(self) -> dict[str, Any]:
        return {
            "replicas": self.replicas,
            "rate_per_s": four_digits(self.rate_per_s),
            "holds": self.holds,
            "draws": self.num_draws,
            "draws_held": self.num_held,
            "reason": self.reason,
            **self.latency,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The answer."""

    minimum: int
    with_headroom: int
    between: tuple[int, int] | None
    """Where only the seed of the load decides: this many or one more. None: every draw agrees."""
    floor: int | None
    """By division, where the load is too short for a fleet to show a steady state; None where it is not."""
    explanation: str
    """Why n instances carry more or less than n times one."""
    runs: tuple[FleetRun, ...]
    at_minimum: FleetRun


_Draw = tuple[str | None, RunSummary | None, float]
"""(why it does not hold, figures, requests per second)."""


@dataclass(slots=True)
class FleetSizer:
    """Simulates fleets; each number of replicas and load once."""

    task: Task
    _draws: dict[tuple[int, float], list[_Draw]] = field(default_factory=dict)
    _loads: dict[tuple[float, int], Workload] = field(default_factory=dict)

    def first_minimum(self, scale: float, guess: int) -> int:
        """Find the smallest number that holds the first draw of a load while one fewer does not.

        Raises `ConfigError` where none does.
        """
        return smallest(lambda replicas: self.run(replicas, scale, 1).holds, guess)

    def minimum(self, scale: float, guess: int) -> int:
        """Find the smallest number that holds most draws of a load while one fewer does not.

        Raises `ConfigError` where none does.
        """
        found = self.first_minimum(scale, guess)
        while not self.run(found, scale).holds:
            found += 1
        while found > 1 and self.run(found - 1, scale).holds:
            found -= 1
        return found

    @property
    def runs(self) -> tuple[FleetRun, ...]:
        """What was simulated, by replicas and load."""
        return tuple(self._result(*key) for key in sorted(self._draws))

    def run(self, replicas: int, scale: float, most: int | None = None, *, in_all: bool = False) -> FleetRun:
        """Simulate a fleet in as many draws of the load as it takes to tell whether it holds, at most in `most`, or
        `in_all` of them."""
        found = self._draws.setdefault((replicas, scale), [])
        most = most or self.task.num_draws
        allowed = most - math.ceil(_ENOUGH_DRAWS * most)
        while len(found) < most:
            failed = sum(reason is not None for reason, _, _ in found)
            if failed > allowed and failed == len(found) and not in_all:
                break  # it would take luck to hold
            found.append(self._draw(replicas, scale, len(found)))
        return self._result(replicas, scale)

    def _result(self, replicas: int, scale: float) -> FleetRun:
        found = self._draws[replicas, scale]
        reasons = [reason for reason, _, _ in found if reason is not None]
        first = found[0][1]
        return FleetRun(
            replicas=replicas,
            scale=scale,
            rate_per_s=found[0][2],
            num_draws=len(found),
            num_held=len(found) - len(reasons),
            reason=reasons[0] if reasons else None,
            latency={} if first is None else p95s(first),
            limits=() if first is None else tuple(first.limits),
            span_s=len(self._load(scale, 0)) / max(found[0][2], 1e-9),
        )

    def _draw(self, replicas: int, scale: float, number: int) -> _Draw:
        workload, policy = self._load(scale, number), self.task.policy
        target = build_target(fleet_of(self.task, replicas).scenario, {})
        rule = HopelessRun.of(policy, workload.class_names, workload.class_index)
        try:
            record = target.run(workload, deadline_s=deadline_of(workload), stop=rule)
        finally:
            target.close()
        offered = None if self.task.rate_per_s is None else self.task.rate_per_s * scale
        if record.stopped is not None:
            return record.stopped, None, offered or len(record.requests) / max(record.duration_s, 1e-9)
        summary = summarize(record, policy)
        saturation = None if workload.closed_loop is not None else saturation_of(record.requests)
        reason = _first_missed(summary) or (None if saturation is None else saturation.message)
        return reason, summary, offered or summary.overall.requests_per_s or 0.0

    def _load(self, scale: float, number: int) -> Workload:
        key = (scale, number)
        if key not in self._loads:
            self._loads[key] = remember_prompts(self.task.fleet_load(scale, number))
        return self._loads[key]


def size_fleet(task: Task, instance: Instance) -> Replicas:
    """Find how many replicas carry the load, alone and with headroom. Raises `ConfigError` where no number does."""
    sizer, roomy_scale = FleetSizer(task), 1.0 / (1.0 - HEADROOM)
    if _guess(task, instance, roomy_scale) > _MOST_REPLICAS:
        raise ConfigError(
            f"plan: one instance carries {instance.rate_per_s.value:.3g}/s within the limits, so the load takes about "
            f"{_guess(task, instance, 1.0):,} replicas, more than {_MOST_REPLICAS}: the limits are close to what a "
            "request alone takes. Relax the SLO or choose a faster GPU"
        )
    if _is_short(task, instance):
        return _divided(sizer, task, instance, roomy_scale)
    minimum = sizer.minimum(1.0, _guess(task, instance, 1.0))
    at_minimum = sizer.run(minimum, 1.0)
    roomy = sizer.first_minimum(roomy_scale, max(minimum, _guess(task, instance, roomy_scale)))
    between = _between(sizer, minimum)
    return Replicas(
        minimum=minimum,
        with_headroom=max(roomy, minimum),
        between=between,
        floor=None,
        explanation=_explain(minimum, at_minimum, instance.rate_per_s.value),
        runs=sizer.runs,
        at_minimum=at_minimum,
    )


def _is_short(task: Task, instance: Instance) -> bool:
    """The load ends before a queue could show, so that a fleet's simulation says nothing of a steady state."""
    if task.rate_per_s is None:
        return False
    stay_s = instance.concurrency.value / instance.rate_per_s.value
    return len(task.workload) / task.rate_per_s < max(_SHORT_S, _SHORT_STAYS * stay_s)


def _divided(sizer: FleetSizer, task: Task, instance: Instance, roomy_scale: float) -> Replicas:
    """By division, simulated once, and more where even the short load does not hold."""
    floor = _guess(task, instance, 1.0)
    minimum = floor
    while not (run := sizer.run(minimum, 1.0)).holds:
        if minimum >= _MOST_REPLICAS:
            raise _never_holds(minimum)
        minimum += max(1, minimum // 10)
    between = (minimum, minimum + 1) if run.is_contested else None
    return Replicas(
        minimum=minimum,
        with_headroom=max(minimum, _guess(task, instance, roomy_scale)),
        between=between,
        floor=floor,
        explanation=f"the load lasts {run.span_s:.1f} s at this rate, too short for a fleet to reach a steady state: "
        f"no fewer than {_quotient(run, instance.rate_per_s.value)}, rounded up. Give a longer trace, or loop it",
        runs=sizer.runs,
        at_minimum=run,
    )


def _guess(task: Task, instance: Instance, scale: float) -> int:
    if task.rate_per_s is not None:
        return guess_of(task.rate_per_s * scale, instance.rate_per_s.value)
    return guess_of(float(task.concurrency or 1) * scale, max(instance.concurrency.value, 1e-9))


def _between(sizer: FleetSizer, minimum: int) -> tuple[int, int] | None:
    """n and n + 1 where some draws need one and some the other."""
    if minimum > 1 and sizer.run(minimum - 1, 1.0, in_all=True).is_contested:
        return minimum - 1, minimum
    if sizer.run(minimum, 1.0).is_contested:
        return minimum, minimum + 1
    return None


def _explain(minimum: int, run: FleetRun, instance_rate: float) -> str:
    divided, plain = guess_of(run.rate_per_s, instance_rate), _quotient(run, instance_rate)
    if minimum < divided:
        return (
            f"{plain}, yet {minimum} hold: a fleet pools its load, so a burst that overloads one instance spreads over "
            f"{minimum}, and takes a shorter time at the fleet's rate"
        )
    if minimum > divided:
        return (
            f"{plain}, yet it takes {minimum}: the router does not split bursts evenly, long requests meet on one "
            "replica, and each replica has a prefix cache of its own"
        )
    return f"{plain}, rounded up"


def _quotient(run: FleetRun, instance_rate: float) -> str:
    return f"{run.rate_per_s:.4g}/s / {instance_rate:.4g}/s of one instance = {run.rate_per_s / instance_rate:.2f}"


def fleet_of(task: Task, replicas: int) -> Task:
    """Return the task on so many replicas."""
    return task.with_target({"replicas": replicas})


def smallest(holds: Callable[[int], bool], guess: int) -> int:
    """Find the number at which `holds` turns true, from a guess; what is one below was tried unless it is 0.

    Steps double until the turn is between two numbers, then halve. Raises `ConfigError` where none holds.
    """
    low, high, step = 0, max(1, guess), 1
    while not holds(high):
        if high >= _MOST_REPLICAS:
            raise _never_holds(high)
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


def _never_holds(replicas: int) -> ConfigError:
    return ConfigError(
        f"plan: {replicas} replicas do not hold the limits either: a single request may miss them. Relax the SLO or "
        "choose a faster GPU"
    )


def guess_of(rate_per_s: float, instance_rate_per_s: float) -> int:
    """Divide and round up."""
    return max(1, math.ceil(rate_per_s / instance_rate_per_s - 1e-9))


def _first_missed(summary: RunSummary) -> str | None:
    for result in summary.limits:
        if not result.is_met:
            return f"{result.limit.name}: {result.fraction or 0.0:.1%} keep it, {result.required_fraction:.1%} must"
    return None
