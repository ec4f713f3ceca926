"""The same requests, offered faster or slower."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.scenario.arrivals import TraceArrivals
from workbench.scenario.schema import Scenario
from workbench.workload.prompts import RememberedPrompts
from workbench.workload.records import Workload


def lengthened(scenario: Scenario, factor: int) -> Scenario:
    """The scenario with `factor` times the requests; a trace is replayed so many times."""
    if factor == 1:
        return scenario
    spec = scenario.workload
    classes = tuple(
        kind if kind.count is None else kind.model_copy(update={"count": kind.count * factor}) for kind in spec.classes
    )
    changes: dict[str, object] = {"classes": classes}
    if isinstance(spec.arrivals, TraceArrivals):
        changes["arrivals"] = spec.arrivals.model_copy(update={"loop": spec.arrivals.loop * factor})
    if spec.num_requests is not None:
        changes["num_requests"] = spec.num_requests * factor
    if spec.duration is not None:
        changes["duration"] = spec.duration * factor
    return scenario.model_copy(update={"workload": spec.model_copy(update=changes)})


def is_recorded(scenario: Scenario) -> bool:
    """Every arrival and length comes from a file: another seed changes nothing of them."""
    arrivals = scenario.workload.all_arrivals
    return bool(arrivals) and all(isinstance(each, TraceArrivals) for each in arrivals)


def arrival_rate(workload: Workload) -> float | None:
    """Requests per second that the realised arrivals offer in the long run; None where there is no span.

    Later turns of conversations, which arrive when the turn before has ended, count with the rate of the conversations.
    """
    times = workload.arrival_s
    if workload.turn_pacing is not None:
        times = times[workload.turn_pacing.previous_row < 0]
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    return float((len(times) - 1) / (times[-1] - times[0]) * len(workload) / len(times))


def remember_prompts(workload: Workload) -> Workload:
    """Return the workload with prompts that are made once, however often it is offered."""
    if isinstance(workload.prompts, RememberedPrompts):
        return workload
    return replace(workload, prompts=RememberedPrompts(workload.prompts))


def at_rate(workload: Workload, rate_per_s: float) -> Workload:
    """The workload with its arrival times stretched so that its realised rate is `rate_per_s`.

    Everything else stays: lengths, prompts, think times, order. Bursts become denser with the rate. Raises `ValueError`
    for a workload without a rate.
    """
    known = arrival_rate(workload)
    if known is None:
        raise ValueError("the arrivals span no time: they have no rate")
    stretch = known / rate_per_s
    times = workload.arrival_s * stretch
    mark = hashlib.sha256(f"{workload.fingerprint} x {stretch!r}".encode()).hexdigest()
    summary = workload.summary
    return replace(
        workload,
        arrival_s=np.asarray(times, dtype=np.float64),
        fingerprint=mark,
        summary=replace(
            summary,
            span_s=None if summary.span_s is None else summary.span_s * stretch,
            rate_per_s=None if summary.rate_per_s is None else summary.rate_per_s / stretch,
            asked_rate_per_s=rate_per_s,
        ),
    )


def shortened(workload: Workload, most: int) -> Workload:
    """Its first `most` requests (all of them where there are no more)."""
    if len(workload) <= most:
        return workload
    changes: dict[str, Any] = {
        name: getattr(workload, name)[:most]
        for name in (
            "request_ids", "class_index", "arrival_s", "num_prompt_tokens", "max_output_tokens", "priority",
            "session_index", "turn",
        )
    }  # fmt: skip
    pacing = workload.turn_pacing
    if pacing is not None:
        changes["turn_pacing"] = replace(
            pacing, previous_row=pacing.previous_row[:most], think_time_s=pacing.think_time_s[:most]
        )
    times = changes["arrival_s"]
    changes["fingerprint"] = hashlib.sha256(f"{workload.fingerprint} first {most}".encode()).hexdigest()
    changes["summary"] = replace(
        workload.summary,
        num_requests=most,
        span_s=None if workload.summary.span_s is None else float(times[-1] - times[0]),
    )
    return replace(workload, **changes)
