"""Frozen records that cross a layer of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.stats import AdmissionStop


class ScheduledRequest(NamedTuple):
    """What the executor must compute for one request in this step."""

    request_id: str
    num_scheduled_tokens: int
    """Tokens computed in this step; 1 for a decode."""
    num_computed_tokens: int
    """Leading tokens whose KV is in the cache before this step."""
    num_tokens: int
    """Tokens to be computed before one is sampled: a token is sampled if and only if
    `num_computed_tokens + num_scheduled_tokens == num_tokens`; more only says that a chunk is not the last."""
    token_ids: Sequence[int]
    """All tokens known, a live view: read `token_ids[num_computed_tokens : num_computed_tokens + n]`, never keep."""
    block_ids: Sequence[int]
    """The block table, a live view; covers every position up to this step's last."""
    sampling: SamplingParams
    is_prefill: bool
    """Some of the scheduled tokens are prompt or replayed output, not just the one sampled last."""


class BlockCopy(NamedTuple):
    """Copy a block's contents before the forward pass: within the device, or to or from the host pool (swap)."""

    source: int
    destination: int
    num_tokens: int
    """Leading positions that matter."""


class SchedulerOutput(NamedTuple):
    """The plan of one step, columnar: entry i of the first three columns belongs to the i-th request scheduled. A named
    tuple, since one is made for every step: a frozen dataclass takes more than twice as long."""

    step_index: int
    requests: Sequence[Request]
    """Live requests in the order of scheduling; their owner is the scheduler, executors only read."""
    num_new_tokens: Sequence[int]
    """Tokens computed in this step; 1 for a decode."""
    num_computed_tokens: Sequence[int]
    """Leading tokens whose KV is in the cache before this step."""
    unsampled: Set[int]
    """Positions whose last known token is not computed yet after this step: chunks that yield no token."""
    num_scheduled_tokens: int
    """Sum of `num_new_tokens`, and one for each steady decode; at most `max_num_batched_tokens`."""
    num_steady: int = 0
    """Further requests, not in `requests`, that decode one token each (`core.steady`); 0 unless the executor's answers
    are known in advance."""
    steady_kv_tokens: int = 0
    """Sum of their KV lengths after this step."""
    steady_longest_kv: int = 0
    """The greatest of them."""
    num_prefill_tokens: int = 0
    """Of these, tokens that are not the one sampled last: prompt or replayed output."""
    num_recomputed_tokens: int = 0
    """Of these, tokens that had been computed before a preemption."""
    admission_stop: AdmissionStop = AdmissionStop.NO_WAITING
    """Why no further request was admitted."""
    finished_request_ids: Sequence[str] = ()
    """Finished since the previous plan: the executor may drop what it keeps for them."""
    preempted_request_ids: Sequence[str] = ()
    copies: Sequence[BlockCopy] = ()
    """Device to device (copy on write), to be done before the forward pass, in order."""
    swap_out: Sequence[BlockCopy] = ()
    """Device to host, before anything else."""
    swap_in: Sequence[BlockCopy] = ()
    """Host to device, after `swap_out`, before `copies`."""

    @property
    def num_requests(self) -> int:
        """Requests that compute something in this step."""
        return len(self.requests) + self.num_steady

    @property
    def scheduled(self) -> list[ScheduledRequest]:
        """The same plan row by row, without steady decodes; built on each call."""
        rows = zip(self.requests, self.num_new_tokens, self.num_computed_tokens, strict=True)
        return [
            ScheduledRequest(
                request_id=request.request_id,
                num_scheduled_tokens=num_new,
                num_computed_tokens=computed,
                num_tokens=computed + num_new + (1 if i in self.unsampled else 0),
                token_ids=request.all_token_ids,
                block_ids=request.block_ids,
                sampling=request.sampling,
                is_prefill=num_new > 1 or i in self.unsampled or computed < request.num_prompt_tokens,
            )
            for i, (request, num_new, computed) in enumerate(rows)
        ]


class ModelRunnerOutput(NamedTuple):
    """Result of one step."""

    sampled_token_ids: Mapping[str, int]
    """Request id -> token, for each request whose known tokens are all computed after this step."""
    logprobs: Mapping[str, Mapping[int, float]] = MappingProxyType({})
    """Request id -> token -> log probability, only where asked for (beam search)."""
    ready_s: float | None = None
    """When the device will have finished, on the engine's clock; None: it has. The engine waits until then, so that a
    simulated device can be busy while the next step is planned."""


class RequestOutput(NamedTuple):
    """News about one request after a step. A named tuple: one is made for every token."""

    request_id: str
    new_token_ids: Sequence[int]
    """One from each of as many consecutive steps; from one step alone, unless the request was a steady decode."""
    finish_reason: str | None
    """`stop`, `length`, `abort` or `error`; None while it goes on."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache at first admission."""
    num_preemptions: int
    first_step: int = -1
    """Row of the step log of the step that gave the first of these tokens; steady decodes report in arrears."""
