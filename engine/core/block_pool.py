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
from engine.core.prefix_index import PrefixIndex
from engine.errors import ConfigError, IntegrityError


class BlockPool:
    """Blocks 1 .. num_blocks - 1. Invariant: a block is in the free queue if and only if its reference count is 0."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ConfigError(f"num_blocks: must be at least 2, as block 0 is never used (got {num_blocks})")
        self.num_blocks = num_blocks
        self.index = PrefixIndex()
        self._ref_counts = [0] * num_blocks
        self._hashes: list[BlockHash | None] = [None] * num_blocks
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
        return self._hashes[block_id]

    def free_queue(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        return list(self._free)

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks are in the free queue."""
        free = self._free
        return sum(block_id in free for block_id in block_ids)

    def take(self, count: int) -> list[int]:
        """Pop `count` blocks from the front; cached content in them is evicted. The caller checked `num_free`."""
        free, hashes, ref_counts = self._free, self._hashes, self._ref_counts
        taken = []
        for _ in range(count):
            block_id, _ = free.popitem(last=False)
            block_hash = hashes[block_id]
            if block_hash is not None:
                self.index.remove(block_hash, block_id)
                hashes[block_id] = None
                self.evictions.append(block_id)
            ref_counts[block_id] = 1
            taken.append(block_id)
        return taken

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; free ones leave the free queue."""
        ref_counts = self._ref_counts
        for block_id in block_ids:
            if ref_counts[block_id] == 0:
                del self._free[block_id]
            ref_counts[block_id] += 1

    def register(self, block_id: int, block_hash: BlockHash) -> None:
        """Make a full block findable by its content."""
        self._hashes[block_id] = block_hash
        self.index.add(block_hash, block_id)

    def forget(self, block_id: int) -> None:
        """Make a held block's content unfindable, because it is about to be overwritten."""
        block_hash = self._hashes[block_id]
        if block_hash is not None:
            self.index.remove(block_hash, block_id)
            self._hashes[block_id] = None

    def release(self, block_ids: Sequence[int]) -> list[int]:
        """Drop one reference from each block of a table, last block first; returns those that became free.

        Uncached ones go to the front (the last of the table is reused first), cached ones to the back.
        """
        ref_counts, hashes, free = self._ref_counts, self._hashes, self._free
        uncached: list[int] = []
        freed: list[int] = []
        for block_id in reversed(block_ids):
            ref_counts[block_id] -= 1
            if ref_counts[block_id]:
                continue
            freed.append(block_id)
            if hashes[block_id] is None:
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
        indexed = dict[int, BlockHash]()
        for block_hash, block_id in self.index.items():
            indexed[block_id] = block_hash
        hashed = {i: h for i, h in enumerate(self._hashes) if h is not None}
        if indexed != hashed:
            raise IntegrityError(
                f"prefix index and block contents differ: {sorted(indexed.keys() ^ hashed.keys())[:8]}"
            )
