"""Questions about a timeline that several rules ask."""

from __future__ import annotations

import numpy as np

from workbench.capacity.diagnosis.evidence import Evidence, Timeline

FULL = 0.95
"""KV usage from which the cache counts as full."""
_FEWEST_WAITING = 3.0
_GROWTH = 1.5
_STANDING_SHARE = 0.8
_LONG_QUEUE = 0.1
_BUSY = 0.9
_SLOWDOWN = 3.0
_USUAL_CAPS = (64, 128, 256, 512, 1024)


def is_queueing(evidence: Evidence) -> bool:
    """Requests wait and the wait does not end by itself: the queue grows, or stands."""
    if evidence.traffic.is_batch:
        return False
    if grows(evidence.timeline):
        return True
    return stands(evidence.timeline) and evidence.traffic.meets_slo is not True


def is_slowing(evidence: Evidence) -> bool:
    """Everybody has a seat, and later requests take much longer a token: the backlog runs along in the batch."""
    traffic = evidence.traffic
    if traffic.is_batch or traffic.is_client_capped or (traffic.busy_share or 0.0) < _BUSY:
        return False
    return (traffic.slowdown or 0.0) >= _SLOWDOWN


def grows(timeline: Timeline) -> bool:
    """The last third has a queue, and a longer one than the first."""
    parts = thirds(timeline)
    return parts is not None and parts[2] >= _FEWEST_WAITING and parts[2] >= _GROWTH * parts[0] and parts[2] > parts[1]


def stands(timeline: Timeline) -> bool:
    """Something waits nearly all the time."""
    if not len(timeline):
        return False
    waiting = timeline.waiting
    enough = max(_FEWEST_WAITING, _LONG_QUEUE * float(timeline.running.mean()))
    return float((waiting > 0).mean()) >= _STANDING_SHARE and float(waiting.mean()) >= enough


def thirds(timeline: Timeline) -> tuple[float, float, float] | None:
    """Mean number waiting in each third of the samples; None for fewer than three."""
    if len(timeline) < 3:
        return None
    first, second, third = (float(part.mean()) for part in np.array_split(timeline.waiting, 3))
    return first, second, third


def queueing_samples(timeline: Timeline) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return timeline.waiting > 0


def kv_usage_while_queueing(timeline: Timeline) -> float | None:
    """Median KV usage of the samples in which something waits."""
    usage = timeline.kv_usage[queueing_samples(timeline)]
    usage = usage[np.isfinite(usage)]
    return float(np.median(usage)) if len(usage) else None


def running_while_queueing(timeline: Timeline) -> float | None:
    running = timeline.running[queueing_samples(timeline)]
    return float(np.median(running)) if len(running) else None


def peak_running(timeline: Timeline) -> float:
    return float(timeline.running.max()) if len(timeline) else 0.0


def peak_kv_usage(timeline: Timeline) -> float | None:
    usage = timeline.kv_usage[np.isfinite(timeline.kv_usage)]
    return float(usage.max()) if len(usage) else None


def cap_of(evidence: Evidence) -> float | None:
    """`max_num_seqs`; where it is not told, the round number at which running stays while others wait."""
    if evidence.limits.max_num_seqs is not None:
        return float(evidence.limits.max_num_seqs)
    running = evidence.timeline.running[queueing_samples(evidence.timeline)]
    if not len(running):
        return None
    top = float(running.max())
    is_usual = top in _USUAL_CAPS if len(running) < 3 else top % 8 == 0 or top in (1, 2, 4)
    return top if is_usual and float((running == top).mean()) >= 0.7 else None


def describe_queue(evidence: Evidence) -> str:
    """For people: how the queue went."""
    parts = thirds(evidence.timeline)
    if parts is not None and grows(evidence.timeline):
        return f"the waiting queue grows ({parts[0]:.1f}, {parts[1]:.1f}, {parts[2]:.1f} on average in each third)"
    return f"{float(evidence.timeline.waiting.mean()):.1f} requests wait on average and the queue never empties"
