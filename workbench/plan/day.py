"""Price a day whose load changes by the hour: a fleet for the peak all day, or one that is scaled in time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import ConfigError
from workbench.plan.answer import Answer
from workbench.plan.replicas import FleetSizer, guess_of
from workbench.records.figures import four_digits

_HOURS = 24.0


def parse_day(texts: Sequence[str]) -> list[tuple[float, float]]:
    """`["0=4", "8=20"]` -> (hour, requests per second), the first from midnight. Raises `ConfigError`."""
    steps = []
    for text in (part for each in texts for part in each.split(",")):
        hour, _, rate = text.partition("=")
        try:
            step = (float(hour), float(rate))
        except ValueError:
            step = (-1.0, -1.0)
        if not (0.0 <= step[0] < _HOURS and 0.0 <= step[1] < math.inf):
            raise ConfigError(f"--day: must be HOUR=RATE with hours 0 to 24, such as 0=4,8=20,18=40 (got {text!r})")
        steps.append(step)
    steps.sort()
    if len({hour for hour, _ in steps}) != len(steps):
        raise ConfigError("--day: an hour is given twice")
    if steps and steps[0][0] > 0.0:
        steps.insert(0, (0.0, steps[-1][1]))  # the last rate of the day lasts over midnight
    return steps


def plan_day(answer: Answer, steps: Sequence[tuple[float, float]], startup_s: float) -> Mapping[str, Any]:
    """Size each step of the day by simulated fleets and price both ways to run it; JSON types only.

    A replica is asked for `startup_s` before the step that needs it, and is paid from then on.
    """
    sizer = FleetSizer(answer.task)
    needed = [_replicas(answer, sizer, rate) for _, rate in steps]
    ends = [hour for hour, _ in steps[1:]] + [_HOURS]
    hours = [end - begin for (begin, _), end in zip(steps, ends, strict=True)]
    following = needed[1:] + needed[:1]
    starting_h = sum(max(0, after - now) for now, after in zip(needed, following, strict=True)) * startup_s / 3600.0
    scaled_h = sum(count * length for count, length in zip(needed, hours, strict=True)) + starting_h
    fixed_h = max(needed) * _HOURS
    hourly = answer.cost["usd_per_gpu_hour"]
    price = None if hourly is None else hourly * answer.hardware.tensor_parallel_size
    return {
        "steps": [
            {"from_hour": hour, "rate_per_s": rate, "replicas": count}
            for (hour, rate), count in zip(steps, needed, strict=True)
        ],
        "startup_s": startup_s,
        "replica_hours_fixed": four_digits(fixed_h),
        "replica_hours_scaled": four_digits(scaled_h),
        "usd_per_day_fixed": None if price is None else four_digits(fixed_h * price),
        "usd_per_day_scaled": None if price is None else four_digits(scaled_h * price),
        "source": f"each step sized by simulated fleets; scaled: replicas start {startup_s:g} s before they are needed",
    }


def _replicas(answer: Answer, sizer: FleetSizer, rate: float) -> int:
    if rate <= 0:
        return 0
    own = answer.task.rate_per_s or rate
    return sizer.first_minimum(rate / own, guess_of(rate, answer.instance.rate_per_s.value))
