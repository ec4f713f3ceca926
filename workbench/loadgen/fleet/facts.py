"""What there is to say about a fleet's run beside its requests and steps; JSON types."""

from __future__ import annotations

from typing import Any

from engine.executor.simulated import SimulatedExecutor
from workbench.loadgen.fleet.loop import FleetRun
from workbench.loadgen.fleet.place import Place
from workbench.loadgen.fleet.pool import Pool

_REASONS = (
    "rate_limit",
    "queue_limit",
    "deadline_foreseen",
    "deadline_passed",
    "too_long",
    "nobody_up",
    "lost",
)
"""Why a request was not served."""
_BY_DESIGN = tuple(reason for reason in _REASONS if reason != "too_long")
"""What the scenario asks for by its limits and failures."""


def fleet_facts(run: FleetRun) -> dict[str, Any]:
    """Replicas, their number over time, refusals, failures, retries and transfers."""
    end_s = max([run.latest_s(), *(run.seen.arrival_s[row] for row in run.seen.issued)])
    for place in run.upkeep.places:
        place.give_back(end_s)
    rented_s = sum(place.rented_s() for place in run.upkeep.places)
    return {
        "replicas": [_replica(pool, place) for pool in run.pools for place in pool.places if place.engines],
        "counts": [list(count) for count in run.upkeep.census.counts],
        "most_replicas": max(up for _, up, _ in run.upkeep.census.counts),
        "mean_replicas": rented_s / end_s if end_s > 0 else None,
        "replica_seconds": rented_s,
        "not_served": {reason: run.door.counts[reason] for reason in _REASONS if run.door.counts[reason]},
        "num_by_design": sum(run.door.counts[reason] for reason in _BY_DESIGN),
        "num_retried": len(run.retries),
        "num_retries": sum(run.retries.values()),
        "failures": [
            {"replica": each.name, "at_s": each.at_s, "num_requests": each.num_lost, "back_s": each.back_s}
            for each in run.upkeep.incidents
        ],
        "failures_unmet": [{"replica": each.replica, "at_s": each.at_s} for each in run.upkeep.unmet],
        "transfers": _transfers(run, end_s),
    }


def _replica(pool: Pool, place: Place) -> dict[str, Any]:
    rented_s, busy_s, queried, hit = place.rented_s(), 0.0, 0, 0
    for engine in place.engines:
        executor = engine.simulation.core.executor
        assert isinstance(executor, SimulatedExecutor)
        busy_s += executor.busy_s
        lookups = engine.simulation.core.scheduler.prefix_cache_stats()
        queried, hit = queried + lookups.queried_tokens, hit + lookups.hit_tokens
    return {
        "name": place.name,
        "pool": pool.name,
        "role": pool.role,
        "num_requests": sum(engine.num_sent for engine in place.engines),
        "num_output_tokens": sum(engine.times.num_tokens for engine in place.engines),
        "num_preemptions": sum(engine.simulation.core.scheduler.num_preemptions for engine in place.engines),
        "prefix_hit_rate": hit / queried if queried and pool.role != "decode" else None,
        "rented_s": rented_s,
        "busy": min(busy_s / rented_s, 1.0) if rented_s > 0 else None,
    }


def _transfers(run: FleetRun, end_s: float) -> dict[str, Any] | None:
    if run.handoff is None:
        return None
    link = run.handoff.link
    count = max(link.num_transfers, 1)  # of none, everything is 0
    senders = sum(len(pool.places) for pool in run.pools if pool.role == "prefill")
    return {
        "num": link.num_transfers,
        "bytes": link.num_bytes,
        "mean_wait_s": link.waited_s / count,
        "mean_s": link.sent_s / count,
        "link_busy": link.sent_s / (end_s * senders) if end_s > 0 else None,
    }
