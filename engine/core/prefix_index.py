"""From the content of full blocks to the blocks that hold it.

Naming a block costs a hash, and most cached blocks are evicted without anybody ever asking for them. So blocks enter
unnamed, as a run that remembers whose tokens they hold; a run is named when a lookup arrives whose first block equals
the run's first block, which is the only kind of lookup that could hit it. What is found, and in which order, is the
same as if every block were named at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.block_hash import BlockHash, copy_block_hashes, extend_block_hashes
from engine.request import Request


class CachedRun:
    """Full blocks of one request that were cached together. Holds the request's tokens for as long as one of its blocks
    is cached."""

    __slots__ = ("block_ids", "first_hash", "num_cached", "positions", "request", "start")

    def __init__(self, request: Request, start: int, block_ids: Sequence[int]) -> None:
        self.request = request
        self.first_hash = request.block_hashes[0]
        self.start = start
        """Which block of the request the first of `block_ids` is."""
        self.block_ids = block_ids
        """Evicted ones included."""
        self.num_cached = len(block_ids)
        self.positions: dict[int, int] | None = None
        """Once named: cached block id -> which block of the request it is."""


class PrefixIndex:
    """Block hash -> block id; several blocks may hold the same content.

    A block filled with content that is already cached is not merged with the older one: both keep the hash, and a
    lookup returns the one registered first that is still there. Ties are rare, so the common entry is a bare id and
    only a duplicate becomes a dict (kept in order of registration).
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self.runs: list[CachedRun | None] = [None] * num_blocks
        """By block id: the run whose content it caches; others only read it."""
        self._entries: dict[BlockHash, int | dict[int, None]] = {}
        self._unnamed: dict[BlockHash, dict[CachedRun, None]] = {}

    def find_longest_run(self, request: Request, most: int) -> list[int]:
        """Blocks that hold the longest cached prefix of the request's first `most` full blocks."""
        if most <= 0:
            return []
        extend_block_hashes(request, 1, self._block_size)
        first_hash = request.block_hashes[0]
        self._name(first_hash)
        first = self._entries.get(first_hash)
        if first is None:
            return []
        holder = self.runs[next(iter(first)) if isinstance(first, dict) else first]
        if holder is not None:
            copy_block_hashes(request, holder.request, most, self._block_size)
        hits: list[int] = []
        for position in range(most):
            if position == len(request.block_hashes):
                # Doubling: a short hit costs few hashes, a long one few calls.
                extend_block_hashes(request, min(2 * position, most), self._block_size)
            entry = self._entries.get(request.block_hashes[position])
            if entry is None:
                break
            hits.append(next(iter(entry)) if isinstance(entry, dict) else entry)
        return hits

    def add(self, request: Request, start: int, block_ids: Sequence[int]) -> None:
        """Enter the blocks that hold the request's full blocks from `start` on; the sequence is kept."""
        extend_block_hashes(request, 1, self._block_size)
        run, runs = CachedRun(request, start, block_ids), self.runs
        for block_id in block_ids:
            runs[block_id] = run
        siblings = self._unnamed.get(run.first_hash)
        if siblings is None:
            self._unnamed[run.first_hash] = {run: None}
        else:
            siblings[run] = None

    def drop(self, block_id: int) -> None:
        """The content of a cached block is gone."""
        run = self.runs[block_id]
        assert run is not None
        self.runs[block_id] = None
        run.num_cached -= 1
        if run.positions is None:
            if not run.num_cached:
                self._discard(run)
            return
        block_hash = run.request.block_hashes[run.positions.pop(block_id)]
        entry = self._entries[block_hash]
        if isinstance(entry, dict):
            del entry[block_id]
            if entry:
                return
        del self._entries[block_hash]

    def num_distinct(self) -> int:
        """Number of different cached contents; names everything."""
        for first_hash in list(self._unnamed):
            self._name(first_hash)
        return len(self._entries)

    def find_hash(self, block_id: int) -> BlockHash | None:
        """The name of a block's cached content; None if it has none."""
        run = self.runs[block_id]
        if run is None:
            return None
        position = run.start + run.block_ids.index(block_id)
        extend_block_hashes(run.request, position + 1, self._block_size)
        return run.request.block_hashes[position]

    def blocks_by_hash(self) -> dict[BlockHash, set[int]]:
        """Every entry; names everything. For checks."""
        self.num_distinct()
        return {h: set(entry) if isinstance(entry, dict) else {entry} for h, entry in self._entries.items()}

    def _name(self, first_hash: BlockHash) -> None:
        for run in self._unnamed.pop(first_hash, ()):
            runs, places = self.runs, enumerate(run.block_ids, run.start)
            run.positions = {block_id: position for position, block_id in places if runs[block_id] is run}
            extend_block_hashes(run.request, max(run.positions.values()) + 1, self._block_size)
            hashes = run.request.block_hashes
            for block_id, position in run.positions.items():
                self._enter(hashes[position], block_id)

    def _enter(self, block_hash: BlockHash, block_id: int) -> None:
        entry = self._entries.setdefault(block_hash, block_id)
        if isinstance(entry, dict):
            entry[block_id] = None
        elif entry != block_id:
            self._entries[block_hash] = {entry: None, block_id: None}

    def _discard(self, run: CachedRun) -> None:
        runs = self._unnamed[run.first_hash]
        del runs[run]
        if not runs:
            del self._unnamed[run.first_hash]
