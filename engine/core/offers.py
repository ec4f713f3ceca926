"""What admission would give the head of the queue, or what stands against it; and the giving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.config import SchedulerConfig
from engine.core.admission import AdmissionPolicy
from engine.core.block_manager import BlockManager
from engine.core.plan import Plan
from engine.core.preemption import PreemptionPolicy
from engine.request import Request
from engine.stats import AdmissionStop, PrefixCacheStats


class Offer(NamedTuple):
    """What a waiting request would get."""

    hits: Sequence[int]
    """Blocks of the prefix cache."""
    num_computed: int
    """Tokens that count as computed: those of the hits, or what a suspended request brings with it."""
    num_new: int
    """Tokens to be computed in this step."""


class Offers:
    """Asks prefix cache, admission policies, token budget and block pool, in vLLM's order. Counts what is looked up."""

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        preemption: PreemptionPolicy,
        policies: Sequence[AdmissionPolicy],
    ) -> None:
        self._blocks, self._preemption, self._policies = blocks, preemption, policies
        self._chunks_prefills = config.enable_chunked_prefill
        self._reserves_whole = config.scheduler_reserve_full_isl
        self._queried = self._hit = self._resumed_queried = self._resumed_hit = 0

    def find(self, request: Request, running: Sequence[Request], budget: int, limit: int) -> Offer | AdmissionStop:
        """A question: what a waiting request would get in a step with so much budget left.

        `limit`: most tokens of one request, 0 = none.
        """
        hits, computed = self._preemption.find_resumable(request)
        pending = request.num_tokens - computed
        for policy in self._policies:
            if not policy.admits(request, running, pending):
                return AdmissionStop.POLICY
        num_new = min(pending, limit) if limit > 0 else pending
        if num_new > budget and not self._chunks_prefills:
            return AdmissionStop.TOKEN_BUDGET
        num_new = min(num_new, budget)
        stop = self._blocks.find_admission_stop(
            request, hits, computed + num_new, whole=self._reserves_whole, idle=not running
        )
        return Offer(hits, computed, num_new) if stop is None else stop

    def accept(self, request: Request, offer: Offer, plan: Plan) -> None:
        """Give the request its blocks. The offer was found in this very step."""
        self._count(request, len(offer.hits) * self._blocks.block_size)
        self._blocks.admit(request, offer.hits, offer.num_computed, offer.num_new)
        self._preemption.resume(request, plan.swap_in)
        request.num_computed_tokens = offer.num_computed

    def prefix_cache_stats(self) -> PrefixCacheStats:
        return PrefixCacheStats(
            queried_tokens=self._queried,
            hit_tokens=self._hit,
            resumed_queried_tokens=self._resumed_queried,
            resumed_hit_tokens=self._resumed_hit,
        )

    def _count(self, request: Request, hit_tokens: int) -> None:
        first = request.num_cached_tokens is None
        if first:
            request.num_cached_tokens = hit_tokens
        if not self._blocks.caches_prefixes:
            return
        if first:
            self._queried += request.num_tokens
            self._hit += hit_tokens
        else:
            self._resumed_queried += request.num_tokens
            self._resumed_hit += hit_tokens
