"""Rules about memory: preemptions, a window that takes the cache, and headroom for the largest step."""

from __future__ import annotations

import math

from workbench.capacity.diagnosis import load
from workbench.capacity.diagnosis.evidence import Evidence
from workbench.capacity.diagnosis.finding import Change, Finding
from workbench.capacity.diagnosis.more import more_kv, more_replicas
from workbench.capacity.diagnosis.registry import rule

_STORM_PER_REQUEST = 0.3
_STORM_RECOMPUTED = 0.1
_COUNTED_PER_REQUEST = 0.05
_COUNTED_PER_SAMPLE = 1.0
_COUNTED_MANY = 25.0
_HEAVY = 2.0
"""Times these, preemptions are the trouble itself; below, a full cache is and they follow from it."""
_STORM_COUNT = 10
_UNSAFE_UTILIZATION = 0.97
_SAFE_UTILIZATION = 0.9
_FEW_FULL_REQUESTS = 2.0
_FEW_WHEN_BOUND = 8.0
_LONG_FOR_USE = 4.0
"""A window so many times the longest request promises what nobody uses."""
_NEAR_WINDOW = 0.7
_SMALL_BATCH = 20


@rule
def preemption_storm(evidence: Evidence) -> Finding | None:
    """Running requests lose their blocks so often that recomputing them is a load of its own."""
    found, traffic = evidence.preemptions, evidence.traffic
    if found.count < _STORM_COUNT:
        return None
    per_request = found.count / traffic.num_requests if traffic.num_requests else None
    strength = _strength(evidence, per_request)
    if strength < 1.0:
        return None
    running = load.peak_running(evidence.timeline)
    seats = min(_seats_that_fit(evidence), max(1, int(0.9 * running)))
    share = (
        "" if found.recomputed_share is None else f"; {found.recomputed_share:.0%} of all tokens were computed again"
    )
    each = "" if per_request is None else f", {per_request:.2f} a request"
    return Finding(
        code="preemption_storm",
        severity=80 if strength >= _HEAVY else 73,
        symptom=f"{found.count} preemptions{each}{share}",
        cause=f"preemption storm: up to {running:.0f} requests are admitted at once and outgrow the KV cache while "
        "they decode; each loses its blocks and is prefilled again",
        evidence={
            "num_preemptions": found.count,
            "per_request": per_request,
            "recomputed_share": found.recomputed_share,
            "peak_running": running,
            "peak_kv_usage": load.peak_kv_usage(evidence.timeline),
            "max_num_seqs": evidence.limits.max_num_seqs,
        },
        changes=(
            Change(parameter="max_num_seqs", value=seats, note="as many as the cache holds to their end"),
            Change(parameter="watermark", value=0.05, note="keeps blocks free at admission, where the engine has it"),
            *more_kv(evidence.limits),
            *more_replicas(evidence),
        ),
    )


def _strength(evidence: Evidence, per_request: float | None) -> float:
    """1 = a finding, 2 = the first one. A server's own count names the trouble at fewer than a run's records do, since
    nothing there tells what was computed again."""
    found = evidence.preemptions
    if evidence.source == "run":
        return max((found.recomputed_share or 0.0) / _STORM_RECOMPUTED, (per_request or 0.0) / _STORM_PER_REQUEST)
    if per_request is not None:
        return per_request / _COUNTED_PER_REQUEST
    samples = max(1, len(evidence.timeline))
    return max(1.0, found.count / (_COUNTED_PER_SAMPLE * samples), found.count / _COUNTED_MANY)


def _seats_that_fit(evidence: Evidence) -> int:
    """Requests that the cache holds to their end."""
    limits, traffic = evidence.limits, evidence.traffic
    length = traffic.total_mean
    if limits.num_blocks and limits.block_size and length:
        return max(1, int(0.95 * limits.num_blocks / math.ceil(length / limits.block_size)))
    running, usage = load.peak_running(evidence.timeline), load.peak_kv_usage(evidence.timeline)
    return max(1, int(0.75 * running / max(usage or 1.0, 0.5)))


@rule
def max_model_len_too_large(evidence: Evidence) -> Finding | None:
    """The window eats the cache: reserved in full by each request, or promised so long that few requests fit."""
    limits, traffic = evidence.limits, evidence.traffic
    window, fits = limits.max_model_len, limits.full_len_concurrency
    if window is None or fits is None:
        return None
    needed = traffic.total_max
    is_unused = needed is None or window >= _LONG_FOR_USE * needed
    is_reserved = limits.reserves_max_len and needed is not None and window >= 2 * needed and _is_tight(evidence)
    running = load.running_while_queueing(evidence.timeline) or 0.0
    is_bound = fits < _FEW_WHEN_BOUND and running <= 2 * fits and _is_kv_bound(evidence)
    is_promised = is_unused and (fits < _FEW_FULL_REQUESTS or is_bound)
    is_near = traffic.total_mean is not None and traffic.total_mean >= _NEAR_WINDOW * window
    is_filled = is_near and fits < _SMALL_BATCH and _is_kv_bound(evidence)
    if not (is_reserved or is_promised or is_filled):
        return None
    if is_reserved:
        cause = f"every request reserves {window} positions of KV cache and uses at most {needed:.0f}"
    elif is_promised:
        use = "" if needed is None else f", and no request is longer than {needed:.0f}"
        cause = (
            f"the KV cache holds {fits:.2f} requests of max_model_len {window}{use}: one long request evicts the rest"
        )
    else:
        cause = f"requests come close to max_model_len {window}, of which only {fits:.1f} fit: the window is the batch"
    changes = [*more_kv(limits), *more_replicas(evidence)]
    if needed is None:
        changes.insert(0, Change(parameter="max_model_len", value="the longest prompt + output that is needed"))
    elif (value := _round_up(needed + 1)) < window:
        note = "longer requests are then refused or clipped"
        changes.insert(0, Change(parameter="max_model_len", value=value, note=note))
    return Finding(
        code="max_model_len_too_large",
        severity=85 if is_reserved else 75 if is_filled else 77 if _is_tight(evidence) else 55,
        symptom=f"{fits:.2f} full-length requests fill the KV cache",
        cause=f"KV eaten by max_model_len: {cause}",
        evidence={
            "max_model_len": window,
            "full_length_concurrency": fits,
            "longest_request": needed,
            "peak_kv_usage": load.peak_kv_usage(evidence.timeline),
            "peak_running": load.peak_running(evidence.timeline) if len(evidence.timeline) else None,
        },
        changes=tuple(changes),
    )


def _is_tight(evidence: Evidence) -> bool:
    usage = load.peak_kv_usage(evidence.timeline)
    return load.is_queueing(evidence) or (usage is not None and usage >= load.FULL)


def _is_kv_bound(evidence: Evidence) -> bool:
    usage = load.kv_usage_while_queueing(evidence.timeline)
    return load.is_queueing(evidence) and usage is not None and usage >= 0.9


def _round_up(length: float) -> int:
    return math.ceil(length / 256) * 256


@rule
def memory_headroom(evidence: Evidence) -> Finding | None:
    """What gpu_memory_utilization leaves of the GPU is less than one large step may need."""
    memory, utilization = evidence.memory, evidence.limits.gpu_memory_utilization
    if utilization is None or evidence.limits.is_num_blocks_stated:
        return None  # the utilisation sizes nothing
    if memory.out_of_memory is not None or memory.start_error is not None:
        return None
    left = None if memory.device_bytes is None else int(memory.device_bytes * (1 - utilization))
    peak = memory.activation_bytes
    is_under = left is not None and peak is not None and left < peak
    if not is_under and utilization < _UNSAFE_UTILIZATION:
        return None
    sizes = "" if left is None else f" = {left / 1024**3:.2f} GiB"
    need = "" if peak is None else f", against an activation peak of {peak / 1024**3:.2f} GiB in the largest step"
    safe = _SAFE_UTILIZATION
    if memory.device_bytes and peak:
        safe = min(safe, math.floor(100 * (1 - 1.2 * peak / memory.device_bytes)) / 100)
    budget = evidence.limits.max_num_batched_tokens
    changes = [Change(parameter="gpu_memory_utilization", value=safe)]
    if is_under and budget is not None and budget > 2048:
        changes.append(Change(parameter="max_num_batched_tokens", value=max(2048, budget // 4), note="a smaller peak"))
    return Finding(
        code="memory_headroom",
        severity=50,
        symptom=f"gpu_memory_utilization {utilization:g} starts, and may run out of memory under long prompts",
        cause=f"memory headroom: only {1 - utilization:.0%} of the GPU{sizes} is left free{need}",
        evidence={
            "gpu_memory_utilization": utilization,
            "headroom_bytes": left,
            "activation_peak_bytes": peak,
            "max_num_batched_tokens": budget,
        },
        changes=tuple(changes),
    )
