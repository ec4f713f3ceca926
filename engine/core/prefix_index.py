"""From block hash to the block that holds that content."""

from __future__ import annotations

from collections.abc import Iterator

from engine.core.block_hash import BlockHash


class PrefixIndex:
    """Hash -> block id; several blocks may hold the same content.

    A block filled with content that is already cached is not merged with the older one: both keep the hash, and a
    lookup returns the one registered first that is still there. Ties are rare, so the common entry is a bare id and
    only a duplicate becomes a dict (kept in order of registration).
    """

    def __init__(self) -> None:
        self._entries: dict[BlockHash, int | dict[int, None]] = {}
        # Bound once: the block manager asks once per block of every prompt.
        self._get = self._entries.get

    def __len__(self) -> int:
        """Number of distinct hashes."""
        return len(self._entries)

    def find(self, block_hash: BlockHash) -> int | None:
        """The oldest block with this content; None if there is none."""
        entry = self._get(block_hash)
        if entry is None or entry.__class__ is int:
            return entry
        return next(iter(entry))  # type: ignore[arg-type]

    def add(self, block_hash: BlockHash, block_id: int) -> None:
        entry = self._get(block_hash)
        if entry is None:
            self._entries[block_hash] = block_id
        elif isinstance(entry, dict):
            entry[block_id] = None
        else:
            self._entries[block_hash] = {entry: None, block_id: None}

    def remove(self, block_hash: BlockHash, block_id: int) -> None:
        entry = self._entries[block_hash]
        if isinstance(entry, dict):
            del entry[block_id]
            if entry:
                return
        del self._entries[block_hash]

    def items(self) -> Iterator[tuple[BlockHash, int]]:
        """Every (hash, block id) pair, duplicates included."""
        for block_hash, entry in self._entries.items():
            for block_id in entry if isinstance(entry, dict) else (entry,):
                yield block_hash, block_id
