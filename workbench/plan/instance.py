"""Find how much one instance carries: parameters worth changing, and its sustainable rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ConfigError
from workbench.loadgen.errors import RunFailed
from workbench.metrics.attainment import LimitResult, SloPolicy
from workbench.metrics.binding import binding_of
from workbench.metrics.certainty import HopelessRun
from workbench.metrics.proportion import Proof
from workbench.metrics.records import RunRecord
from workbench.metrics.summary import RunSummary, summarize
from workbench.metrics.sustain import judge_sustained
from workbench.plan.task import Task
from workbench.records.figures import Figure, SpeedError, speed_error
from workbench.scenario.slo import Slo
from workbench.search.rate import Probe, RateBracket, find_sustainable_rate
from workbench.services.evaluate import deadline_of
from workbench.services.rate_trial import sessions_of
from workbench.services.targets import RunnableTarget, build_target
from workbench.workload.rate import at_rate, shortened
from workbench.workload.records import Workload

_BUDGETS = (512, 1024, 4096, 8192)
"""max_num_batched_tokens to try beside the GPU's default."""
_WORTHWHILE = 1.05
"""Rate with another budget / rate with the default, from which the default is left: less is within what the model
knows of differences between budgets."""
_LONE_REQUESTS = 100
_LONE_RATE_PER_S = 1e-4
"""So slow that no two requests ever meet."""


@dataclass(slots=True, kw_only=True)
class InstanceProber:
    """Runs the requests of a task on one instance at any rate; each rate and draw once."""

    target: RunnableTarget
    task: Task
    policy: SloPolicy
    workload: Workload | None = None
    """Instead of the task's draws: one shorter load."""
    _seen: dict[tuple[float, int], tuple[Probe, RunRecord, RunSummary | None]] = field(default_factory=dict)

    def bracket(self, start_per_s: float) -> RateBracket:
        """Find the highest rate that holds and the lowest that does not."""
        return find_sustainable_rate(lambda rate, factor, draw: self.at(rate, draw)[0], start_per_s)

    def holds(self, rate_per_s: float) -> bool:
        return self.at(rate_per_s)[0].proof is Proof.HOLDS

    def at(self, rate_per_s: float, draw: int = 0) -> tuple[Probe, RunRecord, RunSummary | None]:
        """Return what one run at a rate shows; the summary is None for one that was hopeless before its end."""
        key = (rate_per_s, draw)
        if key not in self._seen:
            self._seen[key] = self._run(rate_per_s, draw)
        return self._seen[key]

    def _run(self, rate_per_s: float, draw: int) -> tuple[Probe, RunRecord, RunSummary | None]:
        workload = at_rate(self.workload or self.task.open_draw(draw), rate_per_s)
        rule = HopelessRun.of(self.policy, workload.class_names, workload.class_index)
        record = self.target.run(workload, deadline_s=deadline_of(workload), stop=rule)
        summary: RunSummary | None = None
        if record.stopped is not None:
            proof, reason = Proof.BROKEN, record.stopped
        else:
            summary = summarize(record, self.policy)
            answer = judge_sustained(record.requests, summary, sessions_of(workload, record.requests))
            proof, reason = answer.proof, answer.reason or ""
        probe = Probe(
            rate_per_s=rate_per_s,
            num_requests=len(workload),
            proof=proof,
            reason=reason or None,
            served_singly=bool(len(record.steps)) and int(record.steps.num_running.max()) <= 1,
            is_repeatable=self.workload is not None or self.task.num_draws == 1,
        )
        return probe, record, summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What was tried on the first requests, and what is taken."""

    params: Mapping[str, Any]
    """On top of the GPU's defaults; empty where nothing was clearly better."""
    start_per_s: float
    """Rate found with them, to begin the search on all requests at."""
    tried: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance's limits."""

    rate_per_s: Figure
    bracket: RateBracket
    concurrency: Figure
    """Mean number of requests inside at the sustainable rate (Little's law)."""
    latency: Mapping[str, float]
    """P95s at that rate, s."""
    bottleneck: str
    engine: Mapping[str, Any]
    """As resolved."""
    error: SpeedError


def tune(task: Task) -> Tuning:
    """Find parameters that carry clearly more than the GPU's defaults on the first requests.

    Raises `ConfigError` for what does not start, and where single requests miss the limits.
    """
    target, quick, policy = build_target(task.scenario, {}), task.quick, task.policy
    guess = task.rate_per_s or float(task.concurrency or 1)
    best = InstanceProber(target=target, task=task, policy=policy, workload=quick).bracket(guess).passed
    if best is None:
        raise ConfigError(_impossible(task, target))
    tried: list[Mapping[str, Any]] = [
        {"params": {}, "rate_per_s": best, "source": f"default, first {len(quick)} requests"}
    ]
    chosen: dict[str, Any] = {}
    for params in _candidates(task):
        try:
            other = build_target(task.scenario, params)
        except ConfigError:
            continue
        prober = InstanceProber(target=other, task=task, policy=policy, workload=quick)
        wanted = best * (_WORTHWHILE if not chosen else 1.02)
        try:
            found = prober.bracket(wanted).passed if prober.holds(wanted) else None
            source = "tried, quick" if found else f"tried, quick: does not hold {wanted:.3g}/s"
        except RunFailed as error:  # it starts, and runs out of memory under load
            found, source = None, f"tried, quick: {error}"
        tried.append({"params": params, "rate_per_s": found, "source": source})
        if found is not None:
            best, chosen = found, params
    return Tuning(params=chosen, start_per_s=best, tried=tuple(tried))


def _candidates(task: Task) -> list[dict[str, Any]]:
    engine = task.scenario.engine
    if "max_num_batched_tokens" in engine:
        return []
    fewer_seqs = {"max_num_seqs": 256} if "max_num_seqs" not in engine else {}
    return [{"max_num_batched_tokens": budget, **(fewer_seqs if budget < 1024 else {})} for budget in _BUDGETS]


def measure_instance(task: Task, start_per_s: float) -> Instance:
    """Find the sustainable rate with the task's parameters, and its interval with the cost model's error.

    If every step took (1 + e) times as long, rate r under limits L would look as rate r (1 + e) under limits
    L / (1 + e) looks now: stretched time. So the interval's ends are sustainable rates too, found with the
    limits scaled (on the first requests, in proportion to their own answer for the limits as they are).

    Raises `ConfigError` where no rate holds.
    """
    target = build_target(task.scenario, {})
    prober = InstanceProber(target=target, task=task, policy=task.policy)
    bracket = prober.bracket(start_per_s)
    value = bracket.passed
    if value is None:
        raise ConfigError(_impossible(task, target))
    _, record, summary = prober.at(value)
    if summary is None:  # the draw that failed; another one held
        record = target.run(at_rate(task.workload, value))
        summary = summarize(record, task.policy)
    error = speed_error(record.engine["profile"])
    slow, fast = _stretch(task, target, start_per_s, 1.0 + error.share)
    source = f"simulated here ({error.source})"
    rate = Figure(
        value=value,
        low=(bracket.low or value) * slow,
        high=(bracket.high or value) * fast,
        source=source,
    )
    inside = value * (summary.overall.e2el_s.mean or 0.0)
    concurrency = Figure(
        value=inside, low=inside * rate.low / value, high=inside * rate.high / value, source=f"{source}: rate x E2EL"
    )
    return Instance(
        rate_per_s=rate,
        bracket=bracket,
        concurrency=concurrency,
        latency=p95s(summary),
        bottleneck=_bottleneck(bracket, record),
        engine=record.engine,
        error=error,
    )


def lone_limits(task: Task, target: RunnableTarget) -> list[LimitResult]:
    """Judge the limits on requests that are alone in the server: nothing is faster."""
    workload = at_rate(shortened(task.workload, _LONE_REQUESTS), _LONE_RATE_PER_S)
    return list(summarize(target.run(workload), task.policy).limits)


def _impossible(task: Task, target: RunnableTarget) -> str:
    """Name the limits that a lone request misses, with what it takes at least."""
    missed = [
        f"{each.limit.name}: a request alone in the server takes {each.value_s:.3g} s, the limit is "
        f"{each.limit.limit_s:.3g} s"
        for each in lone_limits(task, target)
        if not each.is_met and each.value_s is not None
    ]
    if not missed:
        return "plan: no rate holds the limits on one instance. Relax the SLO or choose a faster GPU"
    return (
        f"plan: no rate holds the limits on {task.target.gpu}. {'; '.join(missed)}. Relax the limit to more than that, "
        "or choose a faster GPU or more tensor parallelism"
    )


def _stretch(task: Task, target: RunnableTarget, own_per_s: float, factor: float) -> tuple[float, float]:
    """Return what `factor` times slower and faster steps make of `own_per_s`, the rate of the first requests, as shares
    of it."""
    ends = []
    for scale in (factor, 1.0 / factor):
        policy = _scaled(task.policy, 1.0 / scale)
        prober = InstanceProber(target=target, task=task, policy=policy, workload=task.quick)
        found = prober.bracket(own_per_s / scale).passed
        ends.append(0.0 if found is None else found / scale / own_per_s)
    return min(ends[0], 1.0), max(ends[1], 1.0)


def _scaled(policy: SloPolicy, factor: float) -> SloPolicy:
    """The limits times `factor`."""

    def scaled(slo: Slo) -> Slo:
        return slo.model_copy(update={limit.name: limit.limit_s * factor for limit in slo.limits})

    return SloPolicy(
        default=None if policy.default is None else scaled(policy.default),
        by_class={name: scaled(slo) for name, slo in (policy.by_class or {}).items()},
    )


def p95s(summary: RunSummary) -> dict[str, float]:
    """Return the P95 latencies, s, of what was measured."""
    names = ("ttft_s", "tpot_s", "e2el_s")
    values = {f"{name}.p95": summary.overall.value(f"{name}.p95") for name in names}
    return {name: float(f"{value:.4g}") for name, value in values.items() if value is not None}


def _bottleneck(bracket: RateBracket, record: RunRecord) -> str:
    """Name what fails at the next higher rate, and what limits admission at this one."""
    above = [probe for probe in bracket.probes if bracket.passed is not None and probe.rate_per_s > bracket.passed]
    if not above:
        return "nothing up to the highest rate tried"
    if bracket.failed is None:
        lowest = min(above, key=lambda probe: probe.rate_per_s)
        reason = lowest.reason or "too few to tell"
        return f"at {lowest.rate_per_s:g}/s, not resolved by these requests: {reason}"
    failed = [probe for probe in bracket.probes if probe.rate_per_s == bracket.failed and probe.reason]
    reason = (failed[-1].reason if failed else None) or "unresolved"
    binding = binding_of(record)
    engine = "" if binding is None else f" (engine at {bracket.passed:g}/s: {binding.verdict})"
    return f"at {bracket.failed:g}/s, {reason}{engine}"


def engine_params(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the engine parameters that a plan states."""
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "block_size")
    more = ("enable_prefix_caching", "num_blocks")
    return {name: engine[name] for name in (*names, *more) if name in engine}
