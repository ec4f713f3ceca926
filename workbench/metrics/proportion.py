"""What a share of requests proves about the share that would be seen for ever: Wilson's interval."""

from __future__ import annotations

import math
from enum import Enum
from statistics import NormalDist

CONFIDENCE = 0.95


class Proof(Enum):
    """What a count says about a required share."""

    HOLDS = "holds"
    """The whole interval lies at or above it."""
    BROKEN = "broken"
    """The whole interval lies below it."""
    UNRESOLVED = "unresolved"
    """The interval straddles it: more requests are needed."""


def wilson_interval(num_met: int, num: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """(low, high) of a share of which `num_met` of `num` were seen; (0, 1) without samples.

    Wilson (1927): the shares whose normal test would accept what was seen. Unlike p +- z * s it keeps its level near 0
    and 1, where attainments lie.
    """
    if not 0 <= num_met <= num:
        raise ValueError(f"num_met: must be 0 to {num} (got {num_met})")
    if num == 0:
        return 0.0, 1.0
    z = _quantile(confidence)
    share, square = num_met / num, z * z / num
    center = (share + square / 2) / (1 + square)
    reach = z * math.sqrt(share * (1 - share) / num + square / (4 * num)) / (1 + square)
    low = 0.0 if num_met == 0 else max(0.0, center - reach)
    high = 1.0 if num_met == num else min(1.0, center + reach)
    return low, high


def prove(num_met: int, num: int, required: float, confidence: float = CONFIDENCE) -> Proof:
    """Does the required share hold? A share of 1 can never be shown: all met counts as holding it."""
    low, high = wilson_interval(num_met, num, confidence)
    if low >= required or (required >= 1 and num_met == num > 0):
        return Proof.HOLDS
    return Proof.BROKEN if high < required else Proof.UNRESOLVED


def most_misses(num: int, required: float, confidence: float = CONFIDENCE) -> int:
    """The most of `num` that may miss without breaking the required share for certain; -1 where nothing may."""
    low, high = -1, num
    while low < high:  # the largest number of misses that is not BROKEN
        middle = (low + high + 1) // 2
        if prove(num - middle, num, required, confidence) is Proof.BROKEN:
            high = middle - 1
        else:
            low = middle
    return low


def fewest_to_show(required: float, confidence: float = CONFIDENCE) -> int:
    """Samples from which a required share can be shown to hold, if all keep it; 1 for a share of 1 (see `prove`)."""
    if required >= 1:
        return 1
    square = _quantile(confidence) ** 2
    return max(1, math.ceil(square * required / (1 - required)))


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)
