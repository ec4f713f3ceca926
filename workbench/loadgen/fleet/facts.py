"""What there is to say about a fleet's run beside its requests and steps; JSON types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.executor.simulated import SimulatedExecutor
from workbench.loadgen.fleet.loop import FleetRun
from workbench.loadgen.fleet.place import Place
from workbench.loadgen.fleet.pool import Pool

_REASONS = {
    "rate_limit": "over the rate limit (429)",
    "queue_limit": "over the queue limit (429)",
    "deadline_foreseen": "would have waited past the deadline (503)",
    "deadline_passed": "waited past the deadline (504)",
    "too_long": "too long for every pool",
    "nobody_up": "while no replica was up (503)",
    "lost": "lost with a failed replica (502)",
}
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


_MOST_SHOWN = 12


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


def _pairs(counts: Sequence[Sequence[float]]) -> Iterator[tuple[Sequence[float], Sequence[float] | None]]:
    """Each with the one before."""
    return zip(counts, [None, *counts[:-1]], strict=True)


def fleet_notes(facts: Mapping[str, Any], routing: str) -> Iterator[str]:
    """Lines for a reader."""
    sent = ", ".join(f"{each['name']} {each['num_requests']}" for each in facts["replicas"])
    yield f"requests per replica ({routing}): {sent}"
    if facts["not_served"]:
        parts = ", ".join(f"{number} {_REASONS[reason]}" for reason, number in facts["not_served"].items())
        yield f"not served: {parts}; attainment and goodput count them as missed, latencies leave them out"
    for each in facts["failures"]:
        back = "and stays away" if each["back_s"] is None else f"is back, empty, at {each['back_s']:.1f} s"
        yield f"{each['replica']} failed at {each['at_s']:.1f} s with {each['num_requests']} requests in it, {back}"
    if facts["num_retries"]:
        yield f"{facts['num_retried']} requests were sent again after a failure, {facts['num_retries']} times in all"
    for each in facts["failures_unmet"]:
        yield f"the failure of replica {each['replica']} at {each['at_s']:g} s met nobody: not up, or after the end"
    changes = [(each[0], each[1]) for each, before in _pairs(facts["counts"]) if before is None or each[1] != before[1]]
    if len(facts["counts"]) > 1:
        steps = ", ".join(f"{up} ({when_s:.0f} s)" for when_s, up in changes[:_MOST_SHOWN])
        more = ", ..." if len(changes) > _MOST_SHOWN else ""
        yield (
            f"replicas up: {steps}{more}; at most {facts['most_replicas']}, "
            f"{facts['replica_seconds']:,.0f} replica-seconds in all (mean {facts['mean_replicas']:.2f})"
        )
    moved = facts["transfers"]
    if moved is not None and moved["num"]:
        yield (
            f"KV transfers: {moved['num']}, {moved['bytes'] / 1e9:.3g} GB, {moved['mean_s'] * 1e3:.3g} ms each after "
            f"{moved['mean_wait_s'] * 1e3:.3g} ms of waiting for the link, which was busy {moved['link_busy']:.1%}"
        )
