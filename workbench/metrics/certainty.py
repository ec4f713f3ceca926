"""Ends a run whose answer is certain: an SLO that the requests to come cannot save, or a load that outruns the server.

This is no estimate: a request that has waited longer than its limit has missed it, whatever happens later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.metrics.attainment import SloPolicy, slo_groups
from workbench.metrics.definitions import BoolArray
from workbench.metrics.proportion import most_misses
from workbench.metrics.records import IntArray, PartialRun
from workbench.metrics.saturation import find_saturation
from workbench.scenario.slo import SloLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allowance:
    """How many requests of some classes may miss one limit."""

    limit: SloLimit
    classes: tuple[int, ...]
    num_requests: int
    most_misses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HopelessRun:
    """A stop rule (`records.StopRule`): more requests have missed a limit than Wilson's interval forgives when all the
    others keep it, or queue and TTFT grow without end."""

    allowances: tuple[_Allowance, ...]

    @classmethod
    def of(cls, policy: SloPolicy, class_names: tuple[str, ...], class_index: IntArray) -> HopelessRun:
        """For a workload with these classes; `class_index` [n] of all its requests."""
        found = []
        for slo, classes in slo_groups(class_names, policy):
            count = int(np.isin(class_index, classes).sum())
            for limit in slo.limits:
                if limit.is_mean or limit.metric not in ("ttft_s", "tpot_s", "e2el_s"):
                    continue  # known at the end only
                allowed = most_misses(count, limit.required_fraction(slo.attainment_target)) if count else 0
                found.append(
                    _Allowance(limit=limit, classes=tuple(classes), num_requests=count, most_misses=max(allowed, 0))
                )
        return cls(allowances=tuple(found))

    def __call__(self, run: PartialRun) -> str | None:
        for allowance in self.allowances:
            rows = np.isin(run.class_index, allowance.classes)
            missed = int((has_missed(run, allowance.limit) & rows).sum())
            if missed > allowance.most_misses:
                return (
                    f"{allowance.limit.name}: {missed} of {allowance.num_requests} requests have missed it already, "
                    f"no more than {allowance.most_misses} may"
                )
        left = np.where(run.has_ended, np.where(np.isnan(run.last_token_s), run.arrival_s, run.last_token_s), np.inf)
        saturation = find_saturation(run.arrival_s, run.first_token_s, left)
        return None if saturation is None else saturation.message


_ENOUGH_FAILED = 50


def nothing_completes(run: PartialRun) -> str | None:
    """A stop rule: of the first fifty requests that ended, none completed; the rest would fail alike."""
    num_ended = int(run.has_ended.sum())
    if num_ended < _ENOUGH_FAILED or run.has_completed.any():
        return None
    return f"none of the first {num_ended} requests completed"


def has_missed(run: PartialRun, limit: SloLimit) -> BoolArray:
    """Find the requests [issued] that have missed the limit or can no longer meet it."""
    lost = run.has_ended & ~run.has_completed
    open_since = np.where(run.has_ended, np.nan, run.now_s)
    match limit.metric:
        case "ttft_s":
            first = np.where(np.isnan(run.first_token_s), open_since, run.first_token_s)
            late = first - run.arrival_s > limit.limit_s
        case "e2el_s":
            last = np.where(run.has_ended, run.last_token_s, open_since)
            late = last - run.arrival_s > limit.limit_s
        case _:  # tpot_s
            # The tokens to come share the time that has passed; one token alone has no TPOT.
            last = np.where(run.has_ended, run.last_token_s, run.now_s)
            gaps = np.where(run.has_ended, run.num_output_tokens, run.max_output_tokens) - 1
            late = (gaps >= 1) & ((last - run.first_token_s) / np.maximum(gaps, 1) > limit.limit_s)
    return np.asarray(late | lost)
