"""How much one configuration carries: a bracket over one fixed set of requests, offered faster or slower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.metrics.attainment import SloPolicy
from workbench.metrics.binding import binding_of
from workbench.metrics.certainty import HopelessRun
from workbench.metrics.proportion import Proof
from workbench.metrics.records import RunRecord
from workbench.metrics.summary import RunSummary, summarize
from workbench.metrics.sustain import judge_sustained
from workbench.records.figures import Figure, SpeedError
from workbench.scenario.schema import Scenario
from workbench.scenario.slo import Slo
from workbench.search.rate import Probe, RateBracket, find_sustainable_rate
from workbench.services.evaluate import deadline_of
from workbench.services.rate_trial import sessions_of
from workbench.services.targets import RunnableTarget
from workbench.workload.rate import at_rate
from workbench.workload.records import Workload

_SLOWER = 1.5
"""Time per token of the last third of the requests / of the first, from which a growing number inside is a backlog."""


@dataclass(slots=True, kw_only=True)
class CapacityProber:
    """Runs one workload at any rate, each rate once."""

    target: RunnableTarget
    workload: Workload
    policy: SloPolicy
    _seen: dict[float, tuple[Probe, RunRecord, RunSummary | None]] = field(default_factory=dict)

    def bracket(self, start_per_s: float) -> RateBracket:
        """The rate found to hold and the lowest found not to."""
        return find_sustainable_rate(lambda rate, factor, draw: self.at(rate)[0], start_per_s)

    def holds(self, rate_per_s: float) -> bool:
        return self.at(rate_per_s)[0].proof is Proof.HOLDS

    def at(self, rate_per_s: float) -> tuple[Probe, RunRecord, RunSummary | None]:
        """What one run at a rate shows; the summary is None for one that was hopeless before its end."""
        if rate_per_s not in self._seen:
            self._seen[rate_per_s] = self._run(rate_per_s)
        return self._seen[rate_per_s]

    def _run(self, rate_per_s: float) -> tuple[Probe, RunRecord, RunSummary | None]:
        workload = at_rate(self.workload, rate_per_s)
        rule = HopelessRun.of(self.policy, workload.class_names, workload.class_index)
        record = self.target.run(workload, deadline_s=deadline_of(workload), stop=rule)
        summary: RunSummary | None = None
        if record.stopped is not None:
            proof, reason = Proof.BROKEN, record.stopped
        else:
            summary = summarize(record, self.policy)
            answer = judge_sustained(record.requests, summary, sessions_of(workload, record.requests))
            proof, reason = answer.proof, answer.reason or ""
        singly = bool(len(record.steps)) and int(record.steps.num_running.max()) <= 1
        probe = Probe(
            rate_per_s=rate_per_s,
            num_requests=len(workload),
            proof=proof,
            reason=reason or None,
            served_singly=singly,
        )
        return probe, record, summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """One instance's limits."""

    rate_per_s: Figure
    bracket: RateBracket
    concurrency: Figure
    """Mean number of requests inside at the sustainable rate (Little's law)."""
    latency: Mapping[str, float]
    """P95s at that rate."""
    binds: str


def capacity_of(
    prober: CapacityProber, quick: CapacityProber, start_per_s: float, error: SpeedError
) -> Capacity | None:
    """The bracket, and its interval with the cost model's error. None where no rate holds.

    If every step took (1 + e) times as long, rate r under limits L would look as rate r (1 + e) under limits
    L / (1 + e) looks now: stretched time. So the interval's ends are sustainable rates too, found with the
    limits scaled (on the quick workload, in proportion to its own answer for the limits as they are).
    """
    bracket = prober.bracket(start_per_s)
    if bracket.passed is None:
        return None
    slow, fast = stretch(quick, bracket.passed, 1.0 + error.share)
    value = bracket.passed
    high = (bracket.failed or value) * fast
    _, record, summary = prober.at(value)
    assert summary is not None
    source = f"simulated here ({error.source})"
    rate = Figure(value=value, low=value * slow, high=high, source=source)
    inside = value * (summary.overall.e2el_s.mean or 0.0)
    concurrency = Figure(
        value=inside, low=inside * rate.low / value, high=inside * rate.high / value, source=f"{source}: rate x E2EL"
    )
    return Capacity(
        rate_per_s=rate,
        bracket=bracket,
        concurrency=concurrency,
        latency=p95s(summary),
        binds=_binds(prober, bracket, record),
    )


def stretch(quick: CapacityProber, start_per_s: float, factor: float) -> tuple[float, float]:
    """What `factor` times slower and faster steps make of the sustainable rate, as shares of it."""
    own = quick.bracket(start_per_s).passed
    if own is None:
        return 1.0 / factor, factor
    ends = []
    for scale in (factor, 1.0 / factor):
        other = CapacityProber(target=quick.target, workload=quick.workload, policy=scaled(quick.policy, 1.0 / scale))
        found = other.bracket(own / scale).passed
        ends.append(0.0 if found is None else found / scale / own)
    return min(ends[0], 1.0), max(ends[1], 1.0)


def scaled(policy: SloPolicy, factor: float) -> SloPolicy:
    """The limits times `factor`."""
    return SloPolicy(
        default=None if policy.default is None else _scaled(policy.default, factor),
        by_class={name: _scaled(slo, factor) for name, slo in (policy.by_class or {}).items()},
    )


def p95s(summary: RunSummary) -> dict[str, float]:
    """P95 latencies, s, of what was measured."""
    names = ("ttft_s", "tpot_s", "e2el_s")
    values = {f"{name}.p95": summary.overall.value(f"{name}.p95") for name in names}
    return {name: float(f"{value:.4g}") for name, value in values.items() if value is not None}


def policy_of(scenario: Scenario) -> SloPolicy:
    """The scenario's limits."""
    return SloPolicy.from_scenario(scenario)


def _scaled(slo: Slo, factor: float) -> Slo:
    return slo.model_copy(update={limit.name: limit.limit_s * factor for limit in slo.limits})


def _binds(prober: CapacityProber, bracket: RateBracket, record: RunRecord) -> str:
    above = [probe for probe in bracket.probes if bracket.passed is not None and probe.rate_per_s > bracket.passed]
    if not above:
        return "nothing up to the highest rate tried"
    if bracket.failed is None:
        lowest = min(above, key=lambda probe: probe.rate_per_s)
        reason = lowest.reason or "too few to tell"
        return f"at {lowest.rate_per_s:g}/s, not resolved by these requests: {reason}"
    reason = prober.at(bracket.failed)[0].reason or "unresolved"
    binding = binding_of(record)
    engine = "" if binding is None else f" (engine at {bracket.passed:g}/s: {binding.verdict})"
    return f"at {bracket.failed:g}/s, {reason}{engine}"


def engine_params(record: RunRecord) -> dict[str, Any]:
    """The engine parameters that a plan states."""
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "block_size")
    more = ("enable_prefix_caching", "num_blocks")
    return {name: record.engine[name] for name in (*names, *more) if name in record.engine}
