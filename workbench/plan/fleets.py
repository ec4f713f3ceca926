"""Other ways to run the planned number of replicas: routings, pools, prefill and decode apart, the loss of one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from workbench.metrics.summary import summarize
from workbench.plan.comparison import Variation
from workbench.plan.instance import p95s
from workbench.plan.task import Task
from workbench.scenario.fleet import PoolSpec
from workbench.services.evaluate import deadline_of
from workbench.services.targets import build_target

_LONG_PERCENT = 90
"""Prompts over this percentile of length go to the pool for long ones."""
_LINK_GB_PER_S = 25.0
"""Between prefill and decode pools: one port of 200 Gbit/s for each replica."""


def run_fleets(task: Task, replicas: int, until: float) -> list[dict[str, Any]]:
    """Simulate each under the load asked for, until the time is up (of `time.monotonic`)."""
    rows = []
    for each in vary_fleet(task, replicas):
        if time.monotonic() >= until:
            break
        rows.append(_row(task, each))
    return rows


def _row(task: Task, each: Variation) -> dict[str, Any]:
    workload = task.fleet_load(1.0, 0)
    target = build_target(each.applied(task).scenario, {})
    try:
        record = target.run(workload, deadline_s=deadline_of(workload))
    finally:
        target.close()
    summary = summarize(record, task.policy)
    return {
        "name": each.name,
        "changes": dict(each.target),
        "latency": p95s(summary),
        "holds": all(limit.is_met for limit in summary.limits),
        "source": f"simulated with {len(workload)} requests at the load asked for",
    }


def vary_fleet(task: Task, replicas: int) -> Iterator[Variation]:
    """List the ways; none for a single replica."""
    if replicas < 2:
        return
    own = task.target.routing
    for name in dict.fromkeys((own, "round_robin", "least_loaded", "prefix_hash")):
        yield Variation(name=f"{replicas} replicas, {name}", target={"replicas": replicas, "routing": name})
    lengths = sorted(task.workload.num_prompt_tokens.tolist())
    border = lengths[len(lengths) * _LONG_PERCENT // 100]
    pools = (
        PoolSpec(name="short", replicas=replicas - 1, max_input_tokens=border).model_dump(),
        PoolSpec(name="long").model_dump(),
    )
    yield Variation(name=f"pools: prompts > {border} apart", target={"replicas": 1, "pools": pools})
    for number in sorted({1, replicas // 2, replicas - 1}):
        yield _split(number, replicas)
    if task.concurrency is None:
        at_s = float(task.fleet_load(1.0, 0).arrival_s[len(task.workload) // 2])
        failure = {"replica": replicas, "at_s": at_s}
        yield Variation(name="one more, which fails halfway", target={"replicas": replicas + 1, "failures": [failure]})


def _split(num_prefill: int, replicas: int) -> Variation:
    """Prefill and decode apart, over a link that such machines commonly have."""
    pools = (
        PoolSpec(name="prefill", role="prefill", replicas=num_prefill).model_dump(),
        PoolSpec(name="decode", role="decode", replicas=replicas - num_prefill).model_dump(),
    )
    name = f"{num_prefill} prefill, {replicas - num_prefill} decode"
    return Variation(name=name, target={"replicas": 1, "pools": pools, "link": {"bandwidth_gb_per_s": _LINK_GB_PER_S}})
