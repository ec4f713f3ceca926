"""Rules about a queue that does not empty: which limit holds it, and whether lifting that limit would help."""

from __future__ import annotations

import math
from typing import Any, Literal

from workbench.capacity.diagnosis import load
from workbench.capacity.diagnosis.evidence import Evidence, Trial
from workbench.capacity.diagnosis.finding import Change, Finding
from workbench.capacity.diagnosis.more import more_kv, more_replicas
from workbench.capacity.diagnosis.registry import rule

Limit = Literal["kv", "budget", "cap"]

_LARGE_CAP = 128
"""At so many sequences a step, more rarely raise throughput."""
_SMALL_BUDGET = 1024
"""Tokens a step under which a prefill leaves the GPU idle."""
_NEARLY_FULL = 0.9
_CROWDED = 0.5
_BUSY = 0.9
_HEADROOM = 0.8
"""Part of an instance's measured rate that a plan should use."""
_STOPS: dict[str, Limit] = {
    "kv_blocks": "kv",
    "watermark": "kv",
    "preempted_this_step": "kv",
    "token_budget": "budget",
    "sequence_cap": "cap",
}
_PARAMETERS: dict[Limit, str] = {"kv": "num_blocks", "budget": "max_num_batched_tokens", "cap": "max_num_seqs"}


@rule
def kv_cache_full(evidence: Evidence) -> Finding | None:
    """Waiting grows though running is under the cap: the KV cache is full."""
    if not _is_cause(evidence, "kv"):
        return None
    limits, usage = evidence.limits, load.kv_usage_while_queueing(evidence.timeline)
    running = load.running_while_queueing(evidence.timeline)
    under = f"running stays at {running:.0f}" if running is not None else "running does not rise"
    if limits.max_num_seqs:
        under += f", under the cap of {limits.max_num_seqs}"
    usage_text = "" if usage is None else f"{usage:.0%} of its blocks are in use while requests wait; "
    return Finding(
        code="kv_cache_full",
        severity=74,
        symptom=f"{load.describe_queue(evidence)} while {under}",
        cause=f"the KV cache is full: {usage_text}admission needs free blocks, not a seat{_proof(evidence, 'kv')}",
        evidence=_figures(evidence, kv_usage=usage, running=running, num_blocks=limits.num_blocks),
        changes=(*more_kv(limits), *more_replicas(evidence)),
    )


@rule
def token_budget_too_small(evidence: Evidence) -> Finding | None:
    """Waiting grows though running is under the cap and memory is free: the token budget admits too little a step."""
    if not _is_cause(evidence, "budget"):
        return None
    budget, running = evidence.limits.max_num_batched_tokens, load.running_while_queueing(evidence.timeline)
    usage = load.kv_usage_while_queueing(evidence.timeline)
    trial = evidence.trial("max_num_batched_tokens")
    value: Any = trial.value if trial is not None else 8192 if budget is None else max(2048, 4 * budget)
    size = "the token budget" if budget is None else f"max_num_batched_tokens of {budget}"
    return Finding(
        code="token_budget_too_small",
        severity=72,
        symptom=f"{load.describe_queue(evidence)} while running stays under the cap"
        + ("" if usage is None else f" and KV usage at {usage:.0%}"),
        cause=f"{size} is too small for these prompts: it ends admission long before the seats or the KV cache do"
        f"{_proof(evidence, 'budget')}",
        evidence=_figures(evidence, kv_usage=usage, running=running, max_num_batched_tokens=budget),
        changes=(
            Change(parameter="max_num_batched_tokens", value=value, note="watch TPOT: steps get longer"),
            *(() if budget is None else (Change(parameter="max_num_batched_tokens", value=2 * budget),)),
            *more_replicas(evidence),
        ),
    )


@rule
def sequence_cap_too_small(evidence: Evidence) -> Finding | None:
    """All seats are taken though memory is free."""
    if not _is_cause(evidence, "cap"):
        return None
    cap, usage = load.cap_of(evidence), load.kv_usage_while_queueing(evidence.timeline)
    trial = evidence.trial("max_num_seqs")
    fits = None if cap is None or not usage else int(cap / max(usage, 0.01))
    value: Any = trial.value if trial is not None else None if cap is None else int(min(4 * cap, fits or 4 * cap, 256))
    again = "" if evidence.traffic.is_batch else "while TPOT has room; otherwise add replicas"
    if cap is None:
        return None
    return Finding(
        code="sequence_cap_too_small",
        severity=70,
        symptom=_capped(evidence, cap),
        cause=f"max_num_seqs is too small: every seat is taken and only {usage or 0:.0%} of the KV cache is in use; "
        f"long answers hold their seats for all their steps{_proof(evidence, 'cap')}",
        evidence=_figures(evidence, kv_usage=usage, max_num_seqs=evidence.limits.max_num_seqs),
        changes=(
            Change(parameter="max_num_seqs", value=value, note=again),
            *(Change(parameter="max_num_seqs", value=int(times * cap), note=again) for times in (2, 16)),
            *more_replicas(evidence),
        ),
    )


@rule
def saturation(evidence: Evidence) -> Finding | None:
    """The queue grows whatever the parameters: more arrives than one instance can serve."""
    traffic = evidence.traffic
    is_busy = (traffic.busy_share or 0.0) >= _BUSY and bool(evidence.trials)
    is_full = traffic.misses_ttft and is_busy and not traffic.is_client_capped
    is_slowing = load.is_slowing(evidence)
    is_over = load.is_queueing(evidence) or is_full or is_slowing
    if traffic.is_batch or not is_over or not _is_saturated(evidence):
        return None
    arriving, served = traffic.arrival_rate, traffic.completion_rate
    replicas: Any = "more"
    rates = ""
    if arriving and served:
        there = evidence.fleet.num_replicas
        replicas = max(there + 1, math.ceil(there * arriving / (_HEADROOM * served)))
        rates = f": {arriving:.3g} requests/s arrive, {served:.3g}/s are served"
    tried = [f"{trial.parameter} {trial.before:g} -> {trial.value:g}" for trial in evidence.trials if _is_plain(trial)]
    proof = f"; replayed with {', '.join(tried)} the wait stays" if tried else ""
    return Finding(
        code="saturation",
        severity=60,
        symptom=_overload(evidence),
        cause=f"saturation: the load is more than {_who(evidence)} can serve{rates}{proof}",
        evidence=_figures(
            evidence,
            arrival_rate_per_s=arriving,
            completion_rate_per_s=served,
            peak_running=load.peak_running(evidence.timeline),
            kv_usage=load.kv_usage_while_queueing(evidence.timeline),
        ),
        changes=(
            Change(parameter=evidence.fleet.parameter, value=replicas, note="or a lower rate per instance"),
            *more_replicas(evidence, 2 * replicas if isinstance(replicas, int) else None),
            Change(
                parameter="queue_limit", value=_queue_limit(evidence), note="so that accepted requests keep their SLO"
            ),
        ),
    )


def _queue_limit(evidence: Evidence) -> int:
    """Waiting requests that are begun within about a second; more get 429."""
    return max(4, round(evidence.traffic.completion_rate or 0.0))


def _capped(evidence: Evidence, cap: float) -> str:
    if not evidence.traffic.is_batch:
        return f"{load.describe_queue(evidence)} while running stays at its cap of {cap:g}"
    share = 0.0 if evidence.admission is None else evidence.admission.busy_shares.get("sequence_cap", 0.0)
    return f"max_num_seqs {cap:g} binds in {share:.0%} of the steps of a batch that was there at once"


def _who(evidence: Evidence) -> str:
    count = evidence.fleet.num_replicas
    return "one instance" if count == 1 else f"{count} replicas"


def _overload(evidence: Evidence) -> str:
    traffic = evidence.traffic
    if load.is_queueing(evidence):
        return f"{load.describe_queue(evidence)} although the engine works without a pause"
    busy = f"the engine works {traffic.busy_share or 0:.0%} of the time"
    if load.is_slowing(evidence):
        return f"requests of the last third take {traffic.slowdown:.1f} times as long a token as the first, and {busy}"
    return f"{', '.join(traffic.missed)} and {busy}"


def _limit(evidence: Evidence) -> Limit | None:
    """What ends admission while requests wait: counted where steps are known, inferred from the load otherwise."""
    if evidence.admission is not None:
        shares: dict[Limit, float] = {}
        for stop, share in evidence.admission.shares.items():
            if stop in _STOPS:
                held = _STOPS[stop]
                shares[held] = shares.get(held, 0.0) + share
        return max(shares.items(), key=lambda item: item[1])[0] if shares else None
    usage = load.kv_usage_while_queueing(evidence.timeline)
    cap, running = load.cap_of(evidence), load.running_while_queueing(evidence.timeline)
    is_full = usage is not None and usage >= _NEARLY_FULL
    if cap is not None and running is not None and running >= 0.98 * cap:
        return "cap" if evidence.limits.max_num_seqs is not None or not is_full else "kv"
    return "kv" if is_full else "budget"


def _is_cause(evidence: Evidence, limit: Limit) -> bool:
    """The limit holds the queue and lifting it helps. Where a replay helps, that is the proof."""
    if evidence.trials:
        trial = evidence.trial(_PARAMETERS[limit])
        waits = load.is_queueing(evidence) or evidence.traffic.misses_ttft or evidence.traffic.is_batch
        return trial is not None and trial.helps and waits
    return load.is_queueing(evidence) and _limit(evidence) == limit and _helps(evidence, limit)


def parameters_by_share(evidence: Evidence) -> list[str]:
    """The three limits' parameters, the one that ends admission first."""
    first = _limit(evidence) or "budget"
    order = sorted(_PARAMETERS, key=lambda limit: limit != first)
    return [_PARAMETERS[limit] for limit in order]


def _helps(evidence: Evidence, limit: Limit) -> bool:
    """By rule of thumb, without a replay: lifting the limit helps."""
    admission, budget = evidence.admission, evidence.limits.max_num_batched_tokens
    if limit == "budget":
        is_crowded = admission is not None and (admission.decode_share or 0.0) >= _CROWDED
        return admission is None or budget is None or budget <= _SMALL_BUDGET or is_crowded
    if limit == "cap":
        cap, usage = load.cap_of(evidence), load.kv_usage_while_queueing(evidence.timeline)
        return cap is not None and cap < _LARGE_CAP and (usage is None or usage < _NEARLY_FULL)
    return True


def _is_saturated(evidence: Evidence) -> bool:
    """No limit of the three, once lifted, would help."""
    if not load.is_queueing(evidence) and not evidence.trials:
        return True
    if evidence.trials:
        return not any(trial.helps for trial in evidence.trials if trial.parameter in _PARAMETERS.values())
    limit = _limit(evidence)
    return limit is None or not _helps(evidence, limit)


def _is_plain(trial: Trial) -> bool:
    return trial.parameter in _PARAMETERS.values() and not isinstance(trial.before, str)


def _proof(evidence: Evidence, limit: Limit) -> str:
    trial = evidence.trial(_PARAMETERS[limit])
    if trial is None or not trial.helps:
        return ""
    change = f"{trial.parameter} {trial.before} -> {trial.value}"
    if trial.is_batch:
        served, more = trial.completion_rate
        return f"; replayed with {change}, throughput is {(more or 0.0) / (served or 1.0):.2f} times as high"
    before, after = trial.ttft_p95_s
    return f"; replayed with {change}, TTFT p95 goes from {before:.3g} s to {after:.3g} s"


def _figures(evidence: Evidence, **more: Any) -> dict[str, Any]:
    parts = load.thirds(evidence.timeline)
    return {
        "waiting_by_third": None if parts is None else [round(part, 2) for part in parts],
        "ttft_p95_s": evidence.traffic.ttft_p95_s,
        **more,
    }
