"""Rules about parameters that are the wrong size without a queue: a cap nobody reaches, steps that are too long."""

from __future__ import annotations

from workbench.capacity.diagnosis import load
from workbench.capacity.diagnosis.evidence import Evidence
from workbench.capacity.diagnosis.finding import Change, Finding
from workbench.capacity.diagnosis.more import more_replicas
from workbench.capacity.diagnosis.registry import rule

_FAR_FROM_CAP = 8.0
_UNREACHABLE = 2.0
_LARGE_CAP = 257
"""Smaller caps are room, not a mistake: 256 is the default of many GPUs."""
_MIXED_SHARE = 0.3


@rule
def cap_never_reached(evidence: Evidence) -> Finding | None:
    """`max_num_seqs` was set to what is never reached: it changes nothing, or cannot be reached at all."""
    limits, peak = evidence.limits, load.peak_running(evidence.timeline)
    cap, usage = limits.max_num_seqs, load.peak_kv_usage(evidence.timeline)
    if cap is None or not limits.is_cap_stated or peak <= 0:
        return None
    reach = None if not usage or usage < 0.5 else peak / usage
    is_far = cap >= _LARGE_CAP and cap >= _FAR_FROM_CAP * peak
    is_unreachable = reach is not None and cap >= _UNREACHABLE * reach
    is_planned = evidence.traffic.is_batch and evidence.traffic.meets_slo is True
    if not (is_far or is_unreachable) or is_planned:
        return None
    value = int(2 * peak)
    if value >= cap:
        return None
    if is_unreachable and reach is not None:
        cause = f"the KV cache is full at about {reach:.0f} requests of this length: a cap of {cap} cannot be reached"
    else:
        cause = f"at most {peak:.0f} requests ever run at once: arrivals, not max_num_seqs {cap}, set the batch"
    return Finding(
        code="cap_never_reached",
        severity=30,
        symptom=f"max_num_seqs {cap} is never reached (peak {peak:.0f}, {peak / cap:.0%} of it)",
        cause=f"cap never reached: {cause}; raising it changes nothing, and it reserves memory for logits and graphs",
        evidence={"max_num_seqs": cap, "peak_running": peak, "peak_kv_usage": usage},
        changes=(Change(parameter="max_num_seqs", value=value, note="twice the peak is room enough"),),
    )


@rule
def steps_too_long(evidence: Evidence) -> Finding | None:
    """Nothing waits, yet output tokens come too slowly: the batch or the prefills in it are too large."""
    traffic = evidence.traffic
    if not traffic.misses_tpot or traffic.is_batch or load.is_queueing(evidence):
        return None
    changes: tuple[Change, ...]
    mixed, peak = traffic.longest_prefill_step_share, load.peak_running(evidence.timeline)
    budget, cap = evidence.limits.max_num_batched_tokens, evidence.limits.max_num_seqs
    if mixed is not None and mixed >= _MIXED_SHARE:
        cause = f"{mixed:.0%} of the decodes' time passes in steps that also prefill up to {budget} tokens"
        changes = (
            *(Change(parameter="max_num_batched_tokens", value=part) for part in _parts(budget)),
            *more_replicas(evidence),
        )
    else:
        cause = f"up to {peak:.0f} sequences decode in one step, under a max_num_seqs of {cap}"
        changes = (
            Change(parameter="max_num_seqs", value=max(1, int(0.7 * peak)), note="shorter steps, some waiting"),
            *more_replicas(evidence),
        )
    return Finding(
        code="steps_too_long",
        severity=45,
        symptom=f"{', '.join(traffic.missed)}, and nothing waits",
        cause=f"steps are too long: {cause}",
        evidence={"tpot_p95_s": traffic.tpot_p95_s, "mixed_step_share": mixed, "peak_running": peak},
        changes=changes,
    )


def _parts(budget: int | None) -> tuple[int, ...]:
    return () if budget is None else tuple(max(256, budget // part) for part in (2, 4) if budget > 256)


@rule
def slo_missed(evidence: Evidence) -> Finding | None:
    """Limits are missed; told last, for where nothing more precise is found."""
    traffic, limits = evidence.traffic, evidence.limits
    if traffic.meets_slo is not False or traffic.is_client_capped:
        return None
    budget, cap, peak = limits.max_num_batched_tokens, limits.max_num_seqs, load.peak_running(evidence.timeline)
    changes = []
    if budget is not None:
        larger = Change(parameter="max_num_batched_tokens", value=4 * budget, note="prompts are done in fewer steps")
        smaller = [Change(parameter="max_num_batched_tokens", value=part) for part in _parts(budget)]
        changes += [*smaller, larger] if traffic.misses_tpot else [larger, *smaller]
    if cap is not None and peak >= cap:
        changes.append(Change(parameter="max_num_seqs", value=2 * cap))
    changes += more_replicas(evidence)
    if limits.tensor_parallel_size is not None:
        note = "each step is shared by more GPUs"
        changes.append(Change(parameter="tensor_parallel_size", value=2 * limits.tensor_parallel_size, note=note))
    changes += more_replicas(evidence, 4 * evidence.fleet.num_replicas)
    queue, first = traffic.queue_p95_s, traffic.ttft_p95_s
    waits = "" if queue is None or first is None else f", {queue:.3g} s of a TTFT p95 of {first:.3g} s are waiting"
    return Finding(
        code="slo_missed",
        severity=20,
        symptom=", ".join(traffic.missed),
        cause=f"the load is close to what {evidence.fleet.num_replicas} x this configuration can serve{waits}",
        evidence={"queue_p95_s": queue, "ttft_p95_s": first, "tpot_p95_s": traffic.tpot_p95_s, "peak_running": peak},
        changes=tuple(changes),
    )
