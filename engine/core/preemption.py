"""What a preempted request loses: everything but its cached prefix (recompute), or nothing (swap to host memory)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from engine.core.block_manager import BlockManager
from engine.outputs import BlockCopy
from engine.request import Request


class Resumable(NamedTuple):
    """What a waiting request need not compute again."""

    hit_blocks: Sequence[int]
    """Device blocks that hold it."""
    num_computed_tokens: int
    """Tokens covered: those of `hit_blocks`, or those that will be copied back from the host."""


class PreemptionPolicy(Protocol):
    """Suspends and resumes requests. `copies` are executed by the worker in the step being planned."""

    def suspend(self, request: Request, copies: list[BlockCopy]) -> None:
        """Take the device blocks of a running request; device-to-host copies are appended to `copies`."""
        ...

    def find_resumable(self, request: Request) -> Resumable:
        """A question: what a waiting (new or preempted) request already has."""
        ...

    def resume(self, request: Request, copies: list[BlockCopy]) -> None:
        """The request was admitted and has blocks; host-to-device copies are appended to `copies`."""
        ...

    def drop(self, request: Request) -> None:
        """The request ended while suspended."""
        ...


class RecomputePreemption:
    """Free all blocks; on return, compute again what the prefix cache no longer holds (vLLM V1's only mode)."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks

    def suspend(self, request: Request, copies: list[BlockCopy]) -> None:
        self._blocks.free(request)
        request.num_computed_tokens = 0

    def find_resumable(self, request: Request) -> Resumable:
        hits = self._blocks.find_prefix(request)
        return Resumable(hits, len(hits) * self._blocks.block_size)

    def resume(self, request: Request, copies: list[BlockCopy]) -> None:
        pass

    def drop(self, request: Request) -> None:
        pass


class SwapPreemption:
    """Copy the blocks to a host pool of `num_host_blocks`; falls back to recompute when the host pool is full."""

    def __init__(self, blocks: BlockManager, num_host_blocks: int) -> None:
        self._blocks = blocks
        self._recompute = RecomputePreemption(blocks)
        self._free_host_blocks = list(range(num_host_blocks - 1, -1, -1))
        self._host_tables: dict[str, list[int]] = {}
        self.num_blocks_swapped_out = 0
        self.num_blocks_swapped_in = 0

    def suspend(self, request: Request, copies: list[BlockCopy]) -> None:
        size, computed = self._blocks.block_size, request.num_computed_tokens
        num_written = -(-computed // size)
        if not 0 < num_written <= len(self._free_host_blocks):
            self._recompute.suspend(request, copies)
            return
        host = [self._free_host_blocks.pop() for _ in range(num_written)]
        for i, (device_block, host_block) in enumerate(zip(request.block_ids, host, strict=False)):
            copies.append(
                BlockCopy(source=device_block, destination=host_block, num_tokens=min(computed - i * size, size))
            )
        self._host_tables[request.request_id] = host
        self.num_blocks_swapped_out += num_written
        self._blocks.free(request)

    def find_resumable(self, request: Request) -> Resumable:
        if request.request_id in self._host_tables:
            return Resumable((), request.num_computed_tokens)
        return self._recompute.find_resumable(request)

    def resume(self, request: Request, copies: list[BlockCopy]) -> None:
        host = self._host_tables.pop(request.request_id, None)
        if host is None:
            return
        size, computed = self._blocks.block_size, request.num_computed_tokens
        for i, host_block in enumerate(host):
            copies.append(
                BlockCopy(
                    source=host_block, destination=request.block_ids[i], num_tokens=min(computed - i * size, size)
                )
            )
        self.num_blocks_swapped_in += len(host)
        self._free_host_blocks += reversed(host)

    def drop(self, request: Request) -> None:
        self._free_host_blocks += reversed(self._host_tables.pop(request.request_id, []))
