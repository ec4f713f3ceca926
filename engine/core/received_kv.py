"""Requests whose KV was computed by another engine and has arrived here: they begin with it, as after a swap.

As in vLLM's KV connectors the receiving engine takes blocks for all tokens received when it admits the request, shares
those that its own prefix cache holds, and computes what is missing (one token, where all but the last known one came).
What is preempted later has lost it and is computed again, as everything is.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.block_manager import BlockManager
from engine.core.preemption import PreemptionPolicy, Resumable
from engine.outputs import BlockCopy
from engine.request import Request


class ReceivedKv:
    """A preemption policy around another one: what arrived counts as computed at the first admission."""

    def __init__(self, inner: PreemptionPolicy, blocks: BlockManager) -> None:
        self._inner, self._blocks = inner, blocks
        self._received: dict[str, int] = {}

    def receive(self, request_id: str, num_tokens: int) -> None:
        """The KV of a request's first `num_tokens` tokens is here; its last known token is not among them."""
        self._received[request_id] = num_tokens

    def suspend(self, request: Request, copies: list[BlockCopy]) -> None:
        self._inner.suspend(request, copies)

    def find_resumable(self, request: Request) -> Resumable:
        num_tokens = self._received.get(request.request_id)
        if num_tokens is None:
            return self._inner.find_resumable(request)
        hits: Sequence[int] = self._blocks.find_prefix(request)
        return Resumable(hits, max(num_tokens, len(hits) * self._blocks.block_size))

    def resume(self, request: Request, copies: list[BlockCopy]) -> None:
        if self._received.pop(request.request_id, None) is None:
            self._inner.resume(request, copies)

    def drop(self, request: Request) -> None:
        if self._received.pop(request.request_id, None) is None:
            self._inner.drop(request)
