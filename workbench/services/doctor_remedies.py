"""Each change that a finding offers is tried by replay before it is told; what does not help is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.config import engine_field_names
from workbench.capacity.diagnosis import Change, Evidence, Finding, apply_rules, load
from workbench.capacity.diagnosis.finding import Effect
from workbench.scenario import Scenario
from workbench.scenario.target import SimulatedTarget
from workbench.services.doctor_replay import Replay, Replayer

_LEAST_BETTER = 0.02
"""By which a symptom must change for the better."""
MORE_IS_BETTER = frozenset(
    {"output_tokens_per_s", "slo_attainment", "prefix_hit_rate", "full_length_concurrency", "headroom_share"}
)
_SYMPTOMS: Mapping[str, str] = {
    "preemption_storm": "num_preemptions",
    "prefix_cache_misses": "prefix_hit_rate",
    "head_of_line_blocking": "short_ttft_s.p95",
    "steps_too_long": "tpot_s.p95",
    "memory_headroom": "headroom_share",
    "replicas_missing": "num_not_served",
    "rate_limit_too_low": "num_not_served",
    "out_of_memory": "num_not_served",
    "client_bottleneck": "client_lag_s.p99",
    "cap_never_reached": "unused_seats",
}
"""Finding -> the figure that says how bad it is; the others are about a queue."""
_COSTLY = ("tensor_parallel_size", "pools", "queue_limit")
_MUCH = 0.5
"""Of the greatest gain in attainment, what a change must reach to be told among the first."""
_VAGUE = ("slo_missed", "cap_never_reached")
"""A limit missed by an unknown cause, and a cap that does no harm."""
_PROMPT_ORDER = "prompt order"


def find_causes(evidence: Evidence, replayer: Replayer | None) -> tuple[Finding, ...]:
    """Apply the rules and try what they offer; what is vague is told only where nothing precise helps."""
    found = tuple(try_changes(apply_rules(evidence), evidence, replayer))
    precise = tuple(finding for finding in found if finding.code not in _VAGUE)
    return precise if any(finding.changes for finding in precise) else found


def symptom_of(finding: Finding, evidence: Evidence) -> str:
    """Name the figure that a change must improve."""
    if finding.code in _SYMPTOMS:
        return _SYMPTOMS[finding.code]
    if evidence.traffic.is_batch:
        return "output_tokens_per_s"
    if finding.code == "slo_missed":
        missed = (evidence.traffic.misses_ttft, "ttft_s.p95"), (evidence.traffic.misses_tpot, "tpot_s.p95")
        return next((metric for is_missed, metric in missed if is_missed), "slo_attainment")
    waits = load.is_queueing(evidence) or evidence.traffic.misses_ttft
    if finding.code == "max_model_len_too_large" and not waits:
        return "full_length_concurrency"
    return "tpot_s.p95" if finding.code == "saturation" and not waits else "ttft_s.p95"


def try_changes(findings: Sequence[Finding], evidence: Evidence, replayer: Replayer | None) -> Iterator[Finding]:
    """Yield the findings, first those with a change that helps or could not be tried, with one value a parameter."""
    failed, offered = [], set[str]()
    for finding in findings:
        tried = [_tried(change, finding, evidence, replayer) for change in finding.changes]
        changes = []
        for change in _ordered(tried):
            if (change.effect is None or change.effect.is_better) and change.parameter not in offered:
                offered.add(change.parameter)
                changes.append(change)
        told = replace(finding, changes=tuple(changes))
        if changes:
            yield told
        elif tried and all(change.parameter not in offered for change in tried):
            what = ", ".join(dict.fromkeys(change.parameter for change in tried))
            failed.append(replace(told, cause=f"{told.cause}; no change of {what} helps, each was replayed"))
    yield from failed


def _ordered(changes: Sequence[Change]) -> list[Change]:
    """Sort those that do most first, what is free before what costs a GPU or refuses requests; the untried last."""
    most = max((_attainment_gain(change) for change in changes), default=0.0)

    def order(change: Change) -> tuple[bool, bool, bool]:
        costs = "replicas" in change.parameter or change.parameter in _COSTLY
        return change.effect is None, _attainment_gain(change) < _MUCH * most, costs

    return sorted(changes, key=order)


def _attainment_gain(change: Change) -> float:
    if change.effect is None or not change.effect.is_better or change.effect.slo_attainment is None:
        return 0.0
    before, after = change.effect.slo_attainment
    return after - before


def _tried(change: Change, finding: Finding, evidence: Evidence, replayer: Replayer | None) -> Change:
    if replayer is None:
        return change
    keys = _keys(change, replayer.scenario)
    if not keys or not replayer.can_try(keys):
        return change
    told = replace(change, settings=tuple(f"{path}={_plain(value)}" for path, value in keys.items()))
    found = replayer.replay(keys)
    return told if found is None else replace(told, effect=_effect(symptom_of(finding, evidence), replayer, found))


def _keys(change: Change, scenario: Scenario) -> dict[str, Any]:
    """The change as dotted keys of the scenario; empty where it is none of them."""
    name = change.parameter
    if name == _PROMPT_ORDER:
        return {
            f"workload.classes.{index}.shared_prefix.position": "front"
            for index, each in enumerate(scenario.workload.classes)
            if each.shared_prefix is not None and each.shared_prefix.position != "front"
        }
    if "." in name:
        head = name.partition(".")[0]
        return {name if head in ("target", "workload", "engine") else f"target.{name}": change.value}
    if name in SimulatedTarget.model_fields and isinstance(scenario.target, SimulatedTarget):
        return {f"target.{name}": change.value}
    return {f"engine.{name}": change.value} if name in engine_field_names() else {}


def _effect(symptom: str, replayer: Replayer, after: Replay) -> Effect | None:
    before = replayer.as_stored
    old, new = before.figure(symptom), after.figure(symptom)
    if old is None or new is None:
        return None
    is_more = symptom in MORE_IS_BETTER
    is_better = new > old * (1 + _LEAST_BETTER) if is_more else new < old * (1 - _LEAST_BETTER)
    shares = before.summary.overall.slo_attainment, after.summary.overall.slo_attainment
    attainment = None
    if before.summary.limits and shares[0] is not None and shares[1] is not None:
        attainment = shares[0], shares[1]
        is_better = is_better and shares[1] >= shares[0]
    return Effect(metric=symptom, before=old, after=new, is_better=is_better, slo_attainment=attainment)


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
