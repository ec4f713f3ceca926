"""Rules about what the prompts do to each other: no shared prefix, and long ones in front of short ones."""

from __future__ import annotations

from workbench.capacity.diagnosis import load
from workbench.capacity.diagnosis.evidence import Evidence
from workbench.capacity.diagnosis.finding import Change, Finding
from workbench.capacity.diagnosis.more import more_replicas
from workbench.capacity.diagnosis.registry import rule

_LOW_HIT_RATE = 0.05
_WORTHWHILE = 0.2
"""Of the prompt tokens, what could have been shared to make a finding of it."""
_OVERLAP = 0.5
_SLOWDOWN = 4.0
_SKEW = 8.0
_STALLED = 0.5
_SURGE = 1.5


@rule
def prefix_cache_misses(evidence: Evidence) -> Finding | None:
    """Prefix caching is on and hits nothing."""
    prefix, limits = evidence.prefix, evidence.limits
    if limits.prefix_caching is False or prefix.hit_rate is None or prefix.hit_rate >= _LOW_HIT_RATE:
        return None
    sharing = prefix.sharing
    if prefix.are_prompts_known and (sharing is None or sharing.potential < _WORTHWHILE):
        return None  # these prompts have nothing in common: nothing is lost
    symptom = f"prefix cache hit rate {prefix.hit_rate:.1%} with prefix caching on"
    if sharing is None:
        return Finding(
            code="prefix_cache_misses",
            severity=40,
            symptom=symptom,
            cause="prefix cache: prompts differ within their first block; a time, a name or an id in a varying header "
            "in front of the fixed part is the usual cause (or the prompts truly share nothing)",
            evidence={"prefix_hit_rate": prefix.hit_rate},
            changes=(
                Change(parameter="prompt order", value="fixed part first, varying part last"),
                Change(parameter="enable_prefix_caching", value=False, note="if the prompts share nothing"),
            ),
        )
    first, second = sharing.requests
    return Finding(
        code="prefix_cache_misses",
        severity=78,
        symptom=symptom,
        cause=f"prefix cache: the header varies. Requests {first} and {second} share {sharing.common_tokens} tokens "
        f"from token {sharing.common_from} on, but their first differing token is at {sharing.first_difference} "
        f"({sharing.tokens[0]} against {sharing.tokens[1]}), and a hit needs equal tokens from the very first one",
        evidence={
            "prefix_hit_rate": prefix.hit_rate,
            "first_differing_token": sharing.first_difference,
            "token_ids": list(sharing.tokens),
            "common_tokens": sharing.common_tokens,
            "common_from": sharing.common_from,
            "sharable_share": sharing.potential,
        },
        changes=(
            Change(
                parameter="prompt order",
                value="fixed part first, varying part last",
                note=f"up to {sharing.potential:.0%} of the prompt tokens could come from the cache",
            ),
        ),
    )


@rule
def head_of_line_blocking(evidence: Evidence) -> Finding | None:
    """Short requests wait for the prefill of long prompts in front of them."""
    blocking, traffic = evidence.blocking, evidence.traffic
    if blocking is None:
        return _from_rates(evidence) or _from_spread(evidence)
    if traffic.is_batch or (traffic.meets_slo is True and not load.is_queueing(evidence)):
        return None
    slow = blocking.short_ttft_p95_s >= _SLOWDOWN * blocking.short_ttft_free_s
    if not slow or blocking.overlap < _OVERLAP:
        return None
    trial = evidence.trial("long_prefill_token_threshold")
    proof = ""
    if trial is not None and trial.helps_short:
        before, after = trial.short_ttft_p95_s
        proof = (
            f"; replayed with long_prefill_token_threshold {trial.value}, the short ones' TTFT p95 falls from "
            f"{before:.3g} s to {after:.3g} s"
        )
    if trial is not None and not trial.helps_short and any(other.helps_short for other in evidence.trials):
        return None  # something else holds the short ones
    budget = evidence.limits.max_num_batched_tokens
    threshold = trial.value if trial is not None else None if budget is None else max(64, budget // 4)
    return Finding(
        code="head_of_line_blocking",
        severity=76,
        symptom=f"short requests see a TTFT p95 of {blocking.short_ttft_p95_s:.3g} s, "
        f"{blocking.short_ttft_free_s:.3g} s where no long prompt is near",
        cause=f"head-of-line blocking by long prompts: {blocking.num_long} of at least {blocking.long_tokens} tokens "
        f"cover {blocking.overlap:.0%} of the slow short requests' time to first token{proof}",
        evidence={
            "short_ttft_p95_s": blocking.short_ttft_p95_s,
            "short_ttft_without_long_s": blocking.short_ttft_free_s,
            "overlap": blocking.overlap,
            "long_prompt_tokens": blocking.long_tokens,
            "num_long": blocking.num_long,
            "num_short": blocking.num_short,
        },
        changes=(
            Change(parameter="long_prefill_token_threshold", value=threshold, note="lets short prompts share a step"),
            *more_replicas(evidence),
            Change(parameter="pools", value="long and short apart", note=f"split at {blocking.long_tokens} tokens"),
        ),
    )


def _from_rates(evidence: Evidence) -> Finding | None:
    """A log shows it as intervals in which prompts surge, generation stalls and requests wait, amid calm ones."""
    line = evidence.timeline
    if len(line.prompt_rate) < 4 or len(line.output_rate) != len(line.prompt_rate):
        return None
    waits = line.waiting > 0
    if not waits.any() or waits.all():
        return None
    calm_prompt, calm_output = float(line.prompt_rate[~waits].mean()), float(line.output_rate[~waits].mean())
    surge, stalled = float(line.prompt_rate[waits].mean()), float(line.output_rate[waits].mean())
    usage = load.kv_usage_while_queueing(line)
    if surge < _SURGE * calm_prompt or stalled > _STALLED * calm_output or (usage is not None and usage >= load.FULL):
        return None
    return Finding(
        code="head_of_line_blocking",
        severity=76,
        symptom=f"generation falls from {calm_output:.0f} to {stalled:.0f} tokens/s whenever requests wait",
        cause="head-of-line blocking by long prompts: in those intervals prompts are computed at "
        f"{surge:.0f} tokens/s against {calm_prompt:.0f} otherwise, and everybody behind them waits",
        evidence={
            "output_tokens_per_s": [calm_output, stalled],
            "prompt_tokens_per_s": [calm_prompt, surge],
            "intervals_waiting": int(waits.sum()),
            "kv_usage": usage,
        },
        changes=_split(evidence),
    )


def _from_spread(evidence: Evidence) -> Finding | None:
    """A dump shows it as a few very long prompts beside a time to first token that is short for half of all."""
    traffic = evidence.traffic
    if not (traffic.prompt_p50 and traffic.prompt_p99 and traffic.ttft_p50_s and traffic.ttft_p95_s):
        return None
    usage = load.peak_kv_usage(evidence.timeline)
    is_skewed = traffic.prompt_p99 >= _SKEW * traffic.prompt_p50
    is_slow = traffic.ttft_p95_s >= _SKEW * traffic.ttft_p50_s and traffic.ttft_p95_s >= 1.0
    if not is_skewed or not is_slow or (usage is not None and usage >= load.FULL):
        return None
    return Finding(
        code="head_of_line_blocking",
        severity=76,
        symptom=f"TTFT p95 {traffic.ttft_p95_s:.3g} s where half of all requests see {traffic.ttft_p50_s:.3g} s",
        cause=f"head-of-line blocking by long prompts: 1 % of the prompts have over {traffic.prompt_p99:.0f} tokens, "
        f"half have under {traffic.prompt_p50:.0f}, and the KV cache is not full",
        evidence={
            "ttft_p50_s": traffic.ttft_p50_s,
            "ttft_p95_s": traffic.ttft_p95_s,
            "prompt_p50": traffic.prompt_p50,
            "prompt_p99": traffic.prompt_p99,
            "kv_usage": usage,
        },
        changes=_split(evidence),
    )


def _split(evidence: Evidence) -> tuple[Change, ...]:
    budget = evidence.limits.max_num_batched_tokens or 2048
    return (
        Change(parameter="long_prefill_token_threshold", value=max(64, budget // 4), note="short prompts share a step"),
        Change(parameter="pools", value="long and short apart"),
    )
