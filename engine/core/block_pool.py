"""The pool of KV blocks: reference counts, the free queue in eviction order, cached contents.

Block 0 is never handed out: padding rows of the attention kernels may point at it. The order rules are vLLM's
(VLLM_SEMANTICS, sections 0, 3 and 6): allocation pops from the front of the free queue; a released block goes to the
front when it holds nothing reusable and to the back when its content is cached, so that the back of the queue is the
most recently used content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.core.block_hash import BlockHash
from engine.core.prefix_index import CachedRun, PrefixIndex
from engine.errors import ConfigError, IntegrityError
from engine.request import Request


class BlockPool:
    """Blocks 1 .. num_blocks - 1. Invariant: a block is in the free queue if and only if its reference count is 0."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2:
            raise ConfigError(f"num_blocks: must be at least 2, as block 0 is never used (got {num_blocks})")
        self.num_blocks = num_blocks
        self.index = PrefixIndex(block_size)
        self._ref_counts = [0] * num_blocks
        self._contents: list[CachedRun | None] = [None] * num_blocks
        # An OrderedDict gives append, prepend, pop from the front and removal from the middle, all O(1) in C.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.evictions: list[int] = []
        """Blocks whose cached content was dropped, in order; whoever reads it may clear it."""

    @property
    def num_usable_blocks(self) -> int:
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks with reference count 0, cached or not."""
        return len(self._free)

    @property
    def num_in_use(self) -> int:
        return self.num_blocks - 1 - len(self._free)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def find_hash(self, block_id: int) -> BlockHash | None:
        """The hash of the content cached in a block; None if it holds nothing reusable."""
        run = self._contents[block_id]
        return None if run is None else self.index.find_hash(run, block_id)

    def is_cached(self, block_id: int) -> bool:
        """Does the block hold content that a lookup may find?"""
        return self._contents[block_id] is not None

    def free_queue(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        return list(self._free)

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks are in the free queue."""
        free = self._free
        return sum(block_id in free for block_id in block_ids)

    def take(self, count: int) -> list[int]:
        """Pop `count` blocks from the front; cached content in them is evicted. The caller checked `num_free`."""
        pop, contents, ref_counts = self._free.popitem, self._contents, self._ref_counts
        taken = [pop(False)[0] for _ in range(count)]
        for block_id in taken:
            ref_counts[block_id] = 1
            if contents[block_id] is not None:
                self.forget(block_id)
                self.evictions.append(block_id)
        return taken

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; free ones leave the free queue."""
        ref_counts = self._ref_counts
        for block_id in block_ids:
            if ref_counts[block_id] == 0:
                del self._free[block_id]
            ref_counts[block_id] += 1

    def register(self, request: Request, start: int, block_ids: Sequence[int]) -> None:
        """Make the blocks that hold the request's full blocks from `start` on findable by their contents."""
        run = self.index.add(request, start, block_ids)
        for block_id in block_ids:
            self._contents[block_id] = run

    def forget(self, block_id: int) -> None:
        """Make a block's content unfindable, because it is about to be overwritten."""
        run = self._contents[block_id]
        if run is not None:
            self.index.remove(run, block_id)
            self._contents[block_id] = None

    def release(self, block_ids: Sequence[int]) -> list[int]:
        """Drop one reference from each block of a table, last block first; returns those that became free.

        Uncached ones go to the front (the last of the table is reused first), cached ones to the back.
        """
        ref_counts, contents, free = self._ref_counts, self._contents, self._free
        uncached: list[int] = []
        freed: list[int] = []
        for block_id in reversed(block_ids):
            ref_counts[block_id] -= 1
            if ref_counts[block_id]:
                continue
            freed.append(block_id)
            if contents[block_id] is None:
                uncached.append(block_id)
            else:
                free[block_id] = None
        for block_id in reversed(uncached):
            free[block_id] = None
            free.move_to_end(block_id, last=False)
        return freed

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise `IntegrityError` unless counts, free queue and index agree with the given block tables."""
        counts = [0] * self.num_blocks
        for table in tables:
            for block_id in table:
                counts[block_id] += 1
        if counts != self._ref_counts:
            wrong = [i for i in range(self.num_blocks) if counts[i] != self._ref_counts[i]]
            raise IntegrityError(
                f"reference counts differ from tables for blocks {wrong[:8]}: "
                f"counts {[self._ref_counts[i] for i in wrong[:8]]}, tables {[counts[i] for i in wrong[:8]]}"
            )
        should_be_free = {i for i in range(1, self.num_blocks) if counts[i] == 0}
        if should_be_free != set(self._free):
            raise IntegrityError(f"free queue differs from unreferenced blocks: {should_be_free ^ set(self._free)}")
        if counts[0]:
            raise IntegrityError("block 0 is never used, but a table holds it")
        cached = {i for i in range(self.num_blocks) if self._contents[i] is not None}
        by_hash: dict[BlockHash, set[int]] = {}
        for block_id in cached:
            by_hash.setdefault(self.find_hash(block_id) or b"", set()).add(block_id)
        if by_hash != self.index.blocks_by_hash():
            raise IntegrityError("prefix index and block contents differ")
