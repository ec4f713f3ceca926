"""Rules about what stands in front of several engines: nobody there, or let in too little."""

from __future__ import annotations

from workbench.capacity.diagnosis.evidence import Evidence
from workbench.capacity.diagnosis.finding import Change, Finding
from workbench.capacity.diagnosis.registry import rule

_FEW_LOST = 0.005
_FEW_REFUSED = 0.05


@rule
def replicas_missing(evidence: Evidence) -> Finding | None:
    """Requests found no replica up, or were lost with theirs."""
    fleet, total = evidence.fleet, evidence.traffic.num_requests or 0
    refused, lost = fleet.not_served.get("nobody_up", 0), fleet.not_served.get("lost", 0)
    if not total or (refused + lost) / total < _FEW_LOST:
        return None
    changes = []
    if refused or fleet.retry == "all":
        more = fleet.num_replicas + 1
        changes.append(Change(parameter=f"target.{fleet.parameter}", value=more, note="one is up while one is not"))
    if lost and fleet.retry != "all":
        note = "a router that sends requests again, streams too, where the other replicas have room"
        changes.append(Change(parameter="target.retry", value="all", note=note))
    happened = "; ".join(fleet.failures) or "nobody was up"
    return Finding(
        code="replicas_missing",
        severity=97,
        symptom=f"{refused + lost} of {total} requests were not served: no replica was up, or theirs failed",
        cause=f"too few replicas to lose one: {happened}",
        evidence={"num_requests": total, "nobody_up": refused, "lost": lost, "replicas": fleet.num_replicas},
        changes=tuple(changes),
    )


@rule
def rate_limit_too_low(evidence: Evidence) -> Finding | None:
    """The rate limit refuses what the engines could serve."""
    fleet, traffic = evidence.fleet, evidence.traffic
    total, refused = traffic.num_requests or 0, fleet.not_served.get("rate_limit", 0)
    if not total or refused / total < _FEW_REFUSED or traffic.meets_slo is not False:
        return None
    return Finding(
        code="rate_limit_too_low",
        severity=58,
        symptom=f"{refused} of {total} requests were refused by the rate limit (429), and count as missed",
        cause="the rate limit is lower than what clients send",
        evidence={"num_requests": total, "rate_limit": refused, "busy_share": traffic.busy_share},
        changes=(
            Change(
                parameter="target.rate_limit.requests_per_s",
                value=_higher(fleet.rate_limit_per_s, total, refused),
                note="as far as the replicas go",
            ),
            Change(parameter="target.rate_limit.burst", value="higher", note="where clients send in bursts"),
        ),
    )


def _higher(limit: float | None, total: int, refused: int) -> float | str:
    """What would have let all requests in if all sent evenly, doubled because they do not."""
    return "higher" if limit is None or refused >= total else round(2 * limit * total / (total - refused), 3)
