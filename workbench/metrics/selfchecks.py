"""What must hold in every run on a virtual clock, whatever the cost model says; a violation is a fault of ours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from workbench.metrics.definitions import last_token_s
from workbench.metrics.records import Outcome, RunRecord, StepTable

_LITTLE_TOLERANCE = 0.1
_LITTLE_MIN_REQUESTS = 50
_ROUNDING = 1e-9


def find_violations(record: RunRecord) -> Iterator[str]:
    """One message per law that is broken; nothing for a sound run or one without steps."""
    if not len(record.steps) or not len(record.requests):
        return
    yield from _monotone_time(record)
    yield from _conservation(record)
    yield from _littles_law(record)


def _monotone_time(record: RunRecord) -> Iterator[str]:
    steps, table = record.steps, record.requests
    if (
        any((np.diff(each.end_s) < -_ROUNDING).any() for each in steps.by_replica())
        or (steps.end_s < steps.start_s - _ROUNDING).any()
    ):
        yield "Time ran backwards between steps"
    gaps = np.diff(table.token_times_s)
    # Differences across the border of two requests are not gaps.
    borders = table.token_offsets[1:-1] - 1
    inner = np.ones(len(gaps), dtype=bool)
    inner[borders[(borders >= 0) & (borders < len(gaps))]] = False
    if (gaps[inner] < -_ROUNDING).any():
        yield "A request's tokens came out of order"


def _conservation(record: RunRecord) -> Iterator[str]:
    produced, slots = int(record.requests.num_output_tokens.sum()), int(record.steps.num_scheduled_requests.sum())
    if produced > slots:
        yield f"{produced} output tokens came out of {slots} scheduled rows"
    usable = record.steps.num_blocks_in_use + record.steps.num_free_blocks
    if len(np.unique(usable)) > 1:
        yield "Blocks in use and free blocks do not sum to the pool in every step"


def _littles_law(record: RunRecord) -> Iterator[str]:
    """Mean number running x duration = sum of the times that requests ran; exact but for the edges of steps.

    Of requests that stayed in one engine from their first step to their last token."""
    table, fleet = record.requests, record.fleet or {}
    if fleet.get("num_retries") or fleet.get("transfers"):
        return
    ran = table.outcome == Outcome.COMPLETED
    if ran.sum() < _LITTLE_MIN_REQUESTS or not ran.all() or (table.num_preemptions > 0).any():
        return
    residence = float(np.nansum(last_token_s(table) - table.first_scheduled_s))
    area = sum(_running_s(steps) for steps in record.steps.by_replica())
    # A request is planned while the step before it runs, and its last step may be planned before its end is known: one
    # step of each request is uncertain, which is much of an answer of a token or two.
    edges = area * len(table.outcome) / max(int(record.steps.num_running.sum()), 1)
    if residence > 0 and abs(area - residence) > _LITTLE_TOLERANCE * residence + edges:
        yield f"Little's law fails: {area:.3f} request-seconds by steps, {residence:.3f} by requests"


def _running_s(steps: StepTable) -> float:
    begins = np.maximum(steps.start_s, np.concatenate([[steps.start_s[0]], steps.end_s[:-1]]))
    return float((steps.num_running * (steps.end_s - begins)).sum())
