"""Frozen records that cross a layer of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRequest:
    """What the executor must compute for one request in this step."""

    request_id: str
    num_scheduled_tokens: int
    """Tokens computed in this step; 1 for a decode."""
    num_computed_tokens: int
    """Leading tokens whose KV is in the cache before this step."""
    num_tokens: int
    """Prompt and output tokens known (asynchronous: plus those in flight). A token is sampled if and only if
    `num_computed_tokens + num_scheduled_tokens == num_tokens`."""
    token_ids: Sequence[int]
    """All tokens known, a live view: read `token_ids[num_computed_tokens : num_computed_tokens + n]`, never keep."""
    block_ids: Sequence[int]
    """The block table, a live view; covers every position up to this step's last."""
    sampling: SamplingParams
    is_prefill: bool
    """Some of the scheduled tokens are prompt or replayed output, not just the one sampled last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """Copy a block's contents before the forward pass: within the device, or to or from the host pool (swap)."""

    source: int
    destination: int
    num_tokens: int
    """Leading positions that matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """The plan of one step, in the order of scheduling."""

    step_index: int
    scheduled: Sequence[ScheduledRequest]
    num_scheduled_tokens: int
    """Sum over `scheduled`; at most `max_num_batched_tokens`."""
    finished_request_ids: Sequence[str] = ()
    """Finished since the previous plan: the executor may drop what it keeps for them."""
    preempted_request_ids: Sequence[str] = ()
    copies: Sequence[BlockCopy] = ()
    """Device to device (copy on write), to be done before the forward pass, in order."""
    swap_out: Sequence[BlockCopy] = ()
    """Device to host, before anything else."""
    swap_in: Sequence[BlockCopy] = ()
    """Host to device, after `swap_out`, before `copies`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRunnerOutput:
    """Result of one step."""

    sampled_token_ids: Mapping[str, int]
    """Request id -> token, for each request whose known tokens are all computed after this step."""
    logprobs: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Request id -> token -> log probability, only where asked for (beam search)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """News about one request after a step."""

    request_id: str
    new_token_ids: Sequence[int]
    finish_reason: str | None
    """`stop`, `length`, `abort` or `error`; None while it goes on."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache at first admission."""
    num_preemptions: int
