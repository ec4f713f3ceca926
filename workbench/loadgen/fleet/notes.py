"""A fleet's facts in lines for a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

_REASONS = {
    "rate_limit": "over the rate limit (429)",
    "queue_limit": "over the queue limit (429)",
    "deadline_foreseen": "would have waited past the deadline (503)",
    "deadline_passed": "waited past the deadline (504)",
    "too_long": "too long for every pool",
    "nobody_up": "while no replica was up (503)",
    "lost": "lost with a failed replica (502)",
}
"""Of the facts' `not_served`."""
_MOST_SHOWN = 12


def fleet_notes(facts: Mapping[str, Any], routing: str) -> Iterator[str]:
    """Only of what happened. `facts`: of `facts.fleet_facts`."""
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
    if len(facts["counts"]) > 1:
        yield (
            f"replicas up: {_over_time(facts['counts'])}; at most {facts['most_replicas']}, "
            f"{facts['replica_seconds']:,.0f} replica-seconds in all (mean {facts['mean_replicas']:.2f})"
        )
    moved = facts["transfers"]
    if moved is not None and moved["num"]:
        yield (
            f"KV transfers: {moved['num']}, {moved['bytes'] / 1e9:.3g} GB, {moved['mean_s'] * 1e3:.3g} ms each after "
            f"{moved['mean_wait_s'] * 1e3:.3g} ms of waiting for the link, which was busy {moved['link_busy']:.1%}"
        )


def _over_time(counts: Sequence[Sequence[float]]) -> str:
    """Each number of replicas that were up, with the time from which on it was so."""
    changes = [counts[0], *(now for before, now in pairwise(counts) if now[1] != before[1])]
    text = ", ".join(f"{up} ({when_s:.0f} s)" for when_s, up, _ in changes[:_MOST_SHOWN])
    return text + (", ..." if len(changes) > _MOST_SHOWN else "")
