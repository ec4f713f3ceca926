"""Per-step snapshots and counters. Facts only: aggregation is `workbench.metrics`' duty."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AdmissionStop(Enum):
    """Why a step admitted no further request."""

    NO_WAITING = "no_waiting"
    SEQUENCE_CAP = "sequence_cap"
    TOKEN_BUDGET = "token_budget"
    KV_BLOCKS = "kv_blocks"
    WATERMARK = "watermark"
    PREEMPTED_THIS_STEP = "preempted_this_step"
    POLICY = "policy"
    """An admission policy said wait: batch forming, delay factor, partial-prefill limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One step of the engine."""

    step_index: int
    start_s: float
    """Clock before schedule()."""
    end_s: float
    """Clock when the step's tokens were there."""
    num_running: int
    """Requests holding blocks, after schedule()."""
    num_waiting: int
    """Requests waiting, after schedule()."""
    num_scheduled_requests: int
    num_scheduled_tokens: int
    num_prefill_tokens: int
    """Of the scheduled tokens, those of prefills."""
    num_blocks_in_use: int
    """Blocks with a reference, after schedule()."""
    num_free_blocks: int
    num_preempted: int
    num_recomputed_tokens: int
    """Tokens scheduled that had been computed before a preemption."""
    num_kv_tokens: int
    """Token positions written in held blocks, after this step; with `num_blocks_in_use` gives utilisation."""
    admission_stop: AdmissionStop


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheStats:
    """Lookups at admission. First lookups of each request and lookups after preemption are counted apart."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    resumed_queried_tokens: int = 0
    resumed_hit_tokens: int = 0
