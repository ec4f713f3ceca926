"""Does a server sustain the rate of one run? Every SLO by interval, and no growth of what is inside and of latency."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.metrics.attainment import LimitResult
from workbench.metrics.proportion import Proof, prove, wilson_interval
from workbench.metrics.records import IntArray, RequestTable
from workbench.metrics.saturation import saturation_of
from workbench.metrics.summary import RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """The answer."""

    proof: Proof
    reason: str | None = None
    """What decided it; None where everything holds."""


def judge_sustained(table: RequestTable, summary: RunSummary, session: IntArray | None = None) -> Sustained:
    """From a run that was not ended early. UNRESOLVED where more requests may still decide it.

    `session` [n]: see `saturation.saturation_of`.
    """
    saturation = saturation_of(table, session)
    if saturation is not None:
        return Sustained(proof=Proof.BROKEN, reason=saturation.message)
    open_ends = []
    for result in summary.limits:
        proof, text = _prove_limit(result)
        if proof is Proof.BROKEN:
            return Sustained(proof=proof, reason=text)
        if proof is Proof.UNRESOLVED:
            open_ends.append(text)
    if open_ends:
        return Sustained(proof=Proof.UNRESOLVED, reason=open_ends[0])
    return Sustained(proof=Proof.HOLDS)


def _prove_limit(result: LimitResult) -> tuple[Proof, str]:
    """A share by Wilson's interval, a mean by the normal one."""
    name = result.limit.name
    if result.limit.is_mean:
        if result.mean_s is None:
            return Proof.BROKEN, f"{name}: no request completed"
        limit_s, reach_s = result.limit.limit_s, 1.96 * result.error_s
        text = f"{name}: mean {result.mean_s * 1e3:.4g} ms +- {reach_s * 1e3:.2g} ms, limit {limit_s * 1e3:.4g} ms"
        if result.mean_s + reach_s <= limit_s:
            return Proof.HOLDS, text
        return (Proof.BROKEN if result.mean_s - reach_s > limit_s else Proof.UNRESOLVED), text
    low, high = wilson_interval(result.num_met, result.num_issued)
    what = "gaps" if result.limit.metric == "itl_s" else "requests"
    text = (
        f"{name}: {result.num_met} of {result.num_issued} {what} keep it (95 % interval {low:.1%} to {high:.1%}, "
        f"required {result.required_fraction:.1%})"
    )
    return prove(result.num_met, result.num_issued, result.required_fraction), text
