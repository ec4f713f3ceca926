"""The pool of KV blocks: reference counts, the free queue in eviction order, cached contents.

Block 0 is never handed out: padding rows of the attention kernels may point at it. The order rules are vLLM's
(VLLM_SEMANTICS, sections 0, 3 and 6): allocation pops from the front of the free queue; a released block goes to the
front when it holds nothing reusable and to the back when its content is cached, so that the back of the queue is the
most recently used content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from engine.core.block_hash import BlockHash
from engine.core.prefix_index import PrefixIndex
from engine.errors import ConfigError, IntegrityError
from engine.request import Request


class BlockPool:
    """Blocks 1 .. num_blocks - 1. A block is free if and only if its reference count is 0."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2:
            raise ConfigError(f"num_blocks: must be at least 2, as block 0 is never used (got {num_blocks})")
        self.num_blocks = num_blocks
        self.index = PrefixIndex(num_blocks, block_size)
        self._ref_counts = [0] * num_blocks
        # The free queue: append, prepend and pop without an object for each block. A block that is touched in the
        # middle of it leaves its entry behind: the oldest `_stale[block]` entries of a block do not count.
        self._queue = deque(range(1, num_blocks))
        self._stale: dict[int, int] = {}
        self.num_free = num_blocks - 1
        """Blocks with reference count 0, cached or not."""
        self.evictions: list[int] = []
        """Blocks whose cached content was dropped, in order; whoever reads it may clear it."""

    @property
    def num_usable_blocks(self) -> int:
        return self.num_blocks - 1

    @property
    def num_in_use(self) -> int:
        return self.num_blocks - 1 - self.num_free

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def find_hash(self, block_id: int) -> BlockHash | None:
        """The hash of the content cached in a block; None if it holds nothing reusable."""
        return self.index.find_hash(block_id)

    def is_cached(self, block_id: int) -> bool:
        """Does the block hold content that a lookup may find?"""
        return self.index.runs[block_id] is not None

    def free_queue(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        stale, queue = dict(self._stale), []
        for block_id in self._queue:
            if stale.get(block_id):
                stale[block_id] -= 1
            else:
                queue.append(block_id)
        return queue

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks are in the free queue."""
        ref_counts = self._ref_counts
        return sum([ref_counts[block_id] == 0 for block_id in block_ids])

    def take(self, count: int) -> list[int]:
        """Pop `count` blocks from the front; cached content in them is evicted. The caller checked `num_free`."""
        pop, runs, ref_counts = self._queue.popleft, self.index.runs, self._ref_counts
        taken = self._pop_live(count) if self._stale else [pop() for _ in range(count)]
        self.num_free -= count
        for block_id in taken:
            ref_counts[block_id] = 1
            if runs[block_id] is not None:
                self.index.drop(block_id)
                self.evictions.append(block_id)
        return taken

    def _pop_live(self, count: int) -> list[int]:
        """`count` blocks from the front, passing over stale entries."""
        pop, stale = self._queue.popleft, self._stale
        taken: list[int] = []
        while len(taken) < count:
            block_id = pop()
            num_stale = stale.get(block_id)
            if num_stale is None:
                taken.append(block_id)
            elif num_stale == 1:
                del stale[block_id]
            else:
                stale[block_id] = num_stale - 1
        return taken

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; free ones leave the free queue."""
        ref_counts, stale = self._ref_counts, self._stale
        for block_id in block_ids:
            if ref_counts[block_id] == 0:
                stale[block_id] = stale.get(block_id, 0) + 1
                self.num_free -= 1
            ref_counts[block_id] += 1

    def register(self, request: Request, start: int, block_ids: Sequence[int]) -> None:
        """Make the blocks that hold the request's full blocks from `start` on findable by their contents."""
        self.index.add(request, start, block_ids)

    def forget(self, block_id: int) -> None:
        """Make a block's content unfindable, because it is about to be overwritten."""
        if self.index.runs[block_id] is not None:
            self.index.drop(block_id)

    def release(self, block_ids: Sequence[int]) -> list[int]:
        """Drop one reference from each block of a table, last block first; returns those that became free.

        Uncached ones go to the front (the last of the table is reused first), cached ones to the back.
        """
        ref_counts, runs = self._ref_counts, self.index.runs
        freed: list[int] = []
        for block_id in reversed(block_ids):
            if ref_counts[block_id] == 1:
                ref_counts[block_id] = 0
                freed.append(block_id)
            else:
                ref_counts[block_id] -= 1
        uncached = [block_id for block_id in freed if runs[block_id] is None]
        if uncached:
            if self._stale and not self._stale.keys().isdisjoint(uncached):
                self._compact()  # a stale entry would come behind the new one and be taken for it
            self._queue.extend([block_id for block_id in freed if runs[block_id] is not None])
            self._queue.extendleft(reversed(uncached))
        else:
            self._queue.extend(freed)
        self.num_free += len(freed)
        if len(self._queue) > 2 * self.num_blocks:
            self._compact()
        return freed

    def _compact(self) -> None:
        """Remove stale entries."""
        self._queue = deque(self.free_queue())
        self._stale.clear()

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
        queue = self.free_queue()
        if should_be_free != set(queue) or not len(queue) == len(should_be_free) == self.num_free:
            raise IntegrityError(f"free queue differs from unreferenced blocks: {should_be_free ^ set(queue)}")
        if counts[0]:
            raise IntegrityError("block 0 is never used, but a table holds it")
        cached = {i for i in range(self.num_blocks) if self.is_cached(i)}
        by_hash: dict[BlockHash, set[int]] = {}
        for block_id in cached:
            by_hash.setdefault(self.find_hash(block_id) or b"", set()).add(block_id)
        if by_hash != self.index.blocks_by_hash():
            raise IntegrityError("prefix index and block contents differ")
