"""Block tables of requests: who holds which block, what may be shared, what a step needs.

Owns every `Request.block_ids`. All or nothing: a call either gives the request what the step needs or changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.config import KvPolicy
from engine.core.block_hash import extend_block_hashes
from engine.core.block_pool import BlockPool
from engine.errors import IntegrityError
from engine.outputs import BlockCopy
from engine.request import Request
from engine.stats import AdmissionStop


class BlockManager:
    """Maps requests to blocks of `block_size` token positions.

    With `kv_policy="contiguous"` each request holds blocks for `max_model_len` positions from admission on and nothing
    is shared: the reservation that paged attention replaced, kept as a baseline.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        enable_prefix_caching: bool = True,
        kv_policy: KvPolicy = "paged",
        watermark: float = 0.0,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.reserves_max_len = kv_policy == "contiguous"
        self.caches_prefixes = enable_prefix_caching and not self.reserves_max_len
        self.num_watermark_blocks = int(watermark * num_blocks)
        self.num_kv_tokens = 0
        """Token positions written (or being written in this step) in blocks that are held, each block counted once."""
        self.before_register: Callable[[Request, int], object] | None = None
        """Called before the first so many full blocks of a running request enter the prefix index, some newly."""
        # Positions written in partly filled blocks that a fork shares: their holders may know of fewer.
        self._shared_written: dict[int, int] = {}

    # -- questions ----------------------------------------------------------------------------------------------------

    def find_prefix(self, request: Request) -> list[int]:
        """Longest run of cached blocks from the first one, leaving at least one known token to compute."""
        if not self.caches_prefixes:
            return []
        return self.pool.index.find_longest_run(request, (request.num_tokens - 1) // self.block_size)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that a request of this many tokens holds."""
        num_tokens = self.max_model_len if self.reserves_max_len else min(num_tokens, self.max_model_len)
        return -(-num_tokens // self.block_size)

    def find_admission_stop(
        self, request: Request, hits: Sequence[int], num_tokens: int, *, whole: bool, idle: bool
    ) -> AdmissionStop | None:
        """Why a waiting request cannot be admitted with its first `num_tokens` computed; None if it can.

        `whole`: all its known tokens must fit, though only those of this step are allocated. `idle`: nothing runs, so
        the watermark does not apply.
        """
        most = max(num_tokens, request.num_tokens) if whole else num_tokens
        # Free hit blocks leave the free queue just as new ones do, so both count.
        needed = max(self.num_blocks_for(most) - len(hits), 0) + self.pool.num_free_among(hits)
        free = self.pool.num_free
        if needed > free:
            return AdmissionStop.KV_BLOCKS
        if not idle and needed + self.num_watermark_blocks > free:
            return AdmissionStop.WATERMARK
        return None

    # -- commands -----------------------------------------------------------------------------------------------------

    def admit(self, request: Request, hits: Sequence[int], num_computed: int, num_new: int) -> list[int]:
        """Give a waiting request its hit blocks and new ones for this step; returns the new ones.

        The caller has asked `find_admission_stop`. Hits are touched before new blocks are taken, so that they cannot
        be evicted by their own request.
        """
        self.num_kv_tokens += self.pool.num_free_among(hits) * self.block_size + num_new
        if len(hits) * self.block_size < num_computed:  # swapped in: written without being hit or computed
            self.num_kv_tokens += num_computed - len(hits) * self.block_size
        self.pool.touch(hits)
        taken = self.pool.take(self.num_blocks_for(num_computed + num_new) - len(hits))
        request.block_ids = [*hits, *taken]
        request.num_registered_blocks = len(hits)
        self.enter_full_blocks(request, min(num_computed + num_new, request.num_tokens))
        return taken

    def grow(self, request: Request, num_new: int, copies: list[BlockCopy]) -> list[int] | None:
        """Blocks for `num_new` more tokens of a running request; None (and no change) if the pool has too few.

        A shared block about to be written is replaced by a copy of its own, which is appended to `copies`.
        """
        computed, block_ids = request.num_computed_tokens, request.block_ids
        first = computed // self.block_size
        shared: Sequence[int] = ()
        if request.shares_tail:
            shared = [i for i in range(first, len(block_ids)) if self.pool.ref_count(block_ids[i]) > 1]
        count = max(self.num_blocks_for(computed + num_new) - len(block_ids), 0)
        if count + len(shared) > self.pool.num_free:
            return None
        taken = self.pool.take(count + len(shared))
        for position, replacement in zip(shared, taken, strict=False):
            written = min(max(computed - position * self.block_size, 0), self.block_size)
            if written:
                copies.append(BlockCopy(source=block_ids[position], destination=replacement, num_tokens=written))
                self.num_kv_tokens += written
            self.pool.release([block_ids[position]])
            block_ids[position] = replacement
        if request.shares_tail:
            self._write_in_place(block_ids[first : first + 1], computed % self.block_size, num_new)
        block_ids += taken[len(shared) :]
        self.num_kv_tokens += num_new
        self.register_full_blocks(request, min(computed + num_new, request.num_tokens))
        return taken

    def _write_in_place(self, block_ids: Sequence[int], offset: int, num_new: int) -> None:
        """The last holder of a block that was shared writes over what others, who knew more tokens, wrote there."""
        for block_id in block_ids:
            self.pool.forget(block_id)  # its content is about to differ from its name
            written = self._shared_written.get(block_id, offset)
            self.num_kv_tokens -= min(written - offset, num_new)
            if offset + num_new >= written:
                self._shared_written.pop(block_id, None)

    def register_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the blocks that `num_tokens` leading tokens fill findable, from the moment they are scheduled."""
        full = num_tokens // self.block_size
        if self.before_register is not None and self.caches_prefixes and full > request.num_registered_blocks:
            self.before_register(request, full)
        self.enter_full_blocks(request, num_tokens)

    def enter_full_blocks(self, request: Request, num_tokens: int) -> None:
        """`register_full_blocks` where the order of registration has been seen to."""
        full = num_tokens // self.block_size
        start = request.num_registered_blocks
        if full <= start or not self.caches_prefixes:
            return
        self.pool.register(request, start, request.block_ids[start:full])
        request.num_registered_blocks = full

    def has_shared_tail(self, request: Request) -> bool:
        """Is a block that this request will still write to held, or was it written further, by another request?"""
        first = request.num_computed_tokens // self.block_size
        return any(
            self.pool.ref_count(block_id) > 1 or block_id in self._shared_written
            for block_id in request.block_ids[first:]
        )

    def next_block_event(self, request: Request) -> int:
        """The `num_computed_tokens` at which a decode of this request next needs `grow`; below it nothing changes.

        Before position p is computed a block is needed if p starts one, and one is registered if p ends one.
        """
        computed, size = request.num_computed_tokens, self.block_size
        if len(request.block_ids) * size <= computed:
            return computed
        if not self.caches_prefixes:
            return len(request.block_ids) * size
        return computed // size * size + size - 1

    def free(self, request: Request) -> None:
        """Release all blocks of a request; cached contents stay findable until reused."""
        table, size = request.block_ids, self.block_size
        if not table:
            return
        freed = self.pool.release(table)
        if len(freed) == len(table) and not self._shared_written:
            self.num_kv_tokens -= request.num_computed_tokens
        else:  # only blocks that nobody else holds stop counting
            position = {block_id: i for i, block_id in enumerate(table)}
            for block_id in freed:
                here = min(max(request.num_computed_tokens - position[block_id] * size, 0), size)
                self.num_kv_tokens -= self._shared_written.pop(block_id, here)
        request.block_ids = []
        request.num_registered_blocks = 0

    def fork(self, parent: Request, child: Request, num_tokens: int) -> None:
        """Let `child` share the blocks of `parent`'s first `num_tokens` tokens; whoever writes first copies."""
        shared = parent.block_ids[: -(-num_tokens // self.block_size)]  # nothing of what is only reserved
        self.pool.touch(shared)
        if num_tokens % self.block_size:
            in_last = min(parent.num_computed_tokens - (len(shared) - 1) * self.block_size, self.block_size)
            self._shared_written[shared[-1]] = max(in_last, self._shared_written.get(shared[-1], 0))
        child.block_ids = list(shared)
        child.num_computed_tokens = num_tokens
        child.block_hashes = parent.block_hashes[: num_tokens // self.block_size]
        child.num_registered_blocks = min(parent.num_registered_blocks, num_tokens // self.block_size)

    def check_integrity(self, requests: Iterable[Request], extra_tables: Iterable[Sequence[int]] = ()) -> None:
        """Raise `IntegrityError` unless pool, tables, contents and counters agree."""
        holders = [request for request in requests if request.block_ids]
        self.pool.check_integrity([*[request.block_ids for request in holders], *extra_tables])
        written: dict[int, int] = {}
        for request in holders:
            capacity = len(request.block_ids) * self.block_size
            if request.num_computed_tokens > capacity:
                raise IntegrityError(f"{request!r} computed more tokens than its blocks hold ({capacity})")
            for i, block_id in enumerate(request.block_ids):
                positions = min(max(request.num_computed_tokens - i * self.block_size, 0), self.block_size)
                written[block_id] = max(written.get(block_id, 0), positions, self._shared_written.get(block_id, 0))
                if i < request.num_registered_blocks:
                    extend_block_hashes(request, i + 1, self.block_size)
                    if self.pool.find_hash(block_id) != request.block_hashes[i]:
                        raise IntegrityError(f"block {block_id} of {request!r} is registered under another content")
        if sum(written.values()) != self.num_kv_tokens:
            raise IntegrityError(f"{self.num_kv_tokens} KV tokens counted, {sum(written.values())} held")
