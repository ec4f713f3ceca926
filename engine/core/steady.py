"""Decodes of which everything is known until a known step: they cost nothing until then.

On a simulated device every answer is known in advance, so a request that decodes will take one token in each step, a
block when a block is full, and its end at a step that can be told. While nothing else touches it, its own counters
stand still: what it has computed by now follows from the number of steps since it became steady. Blocks are still
taken in their step and in the order of `running`, so that the pool looks the same, block by block, as if every request
had been stepped on its own. Registration of full blocks is made up for when somebody could see it: when the request
stops being steady, and before anybody looks up or registers blocks of the same content (`prefix_index`).

Ownership: a member belongs to this class between `join` and `leave`; the scheduler decides when.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

from engine.core.block_hash import BlockHash, extend_block_hashes, first_block_hash
from engine.core.block_manager import BlockManager
from engine.request import Request

_order = attrgetter("admission_order")


class Progress:
    """How far the engine has come; the scheduler moves it, the foresight reads it."""

    __slots__ = ("is_amid", "num_planned", "num_updated")

    def __init__(self) -> None:
        self.num_planned = 0
        """Steps whose running requests are planned."""
        self.num_updated = 0
        """Steps whose output was taken."""
        self.is_amid = False
        """The running requests of a step are being planned, in the order of `running`."""


class SteadyDecodes:
    """The members, by the step in which something happens to them. Steps are plan indices.

    Invariant for a member r in step k, `steady_from` <= k: it computes position
    `r.num_computed_tokens + (k - r.steady_from)`; `catch_up` moves both terms and keeps their sum.
    """

    def __init__(self, blocks: BlockManager, progress: Progress, token: int, *, is_async: bool) -> None:
        self.token = token
        """What every member answers."""
        self._answer = array("i", [token])
        self._progress = progress
        self._blocks = blocks
        self._block_size = blocks.block_size
        # The last step of a request is not steady. Its last token is computed at position length_limit - 2, after which
        # the asynchronous mode plans once more before it sees the end.
        self._end_margin = 1 if is_async else 2
        # A full block is entered in the plan of its last position, or in the next where that token is then in flight.
        self._lag = 1 if is_async else 0
        self._ending: dict[int, dict[Request, None]] = {}
        self._due: dict[int, dict[Request, None]] = {}  # step -> members that then need a block
        self._by_first_hash: dict[BlockHash, dict[Request, None]] = {}
        self._longest: list[tuple[int, int, Request]] = []  # heap of (-offset, order, request), stale entries included
        self._num = 0
        self._offset_sum = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Request]:
        """In the order of their endings."""
        for _, members in sorted(self._ending.items()):
            yield from members

    # -- what a step computes -----------------------------------------------------------------------------------------

    def kv_tokens(self, step: int) -> int:
        """Sum of the members' KV lengths after a step."""
        return self._offset_sum + self._num * (step + 1)

    def longest_kv(self, step: int) -> int:
        """The greatest of them."""
        heap = self._longest
        while heap:
            offset, _, request = heap[0]
            if request.steady_from >= 0 and request.steady_from - request.num_computed_tokens == offset:
                return step + 1 - offset
            heappop(heap)
        return 0

    # -- joining and leaving ------------------------------------------------------------------------------------------

    def may_join(self, request: Request) -> bool:
        """Will nothing but decoding happen to a request that was just planned for its last known token?"""
        return (
            request.num_computed_tokens < request.length_limit - self._end_margin
            and not request.shares_tail
            and request.sampling.n == 1
            and self.token != request.eos_token_id
            and self.token not in request.stop_token_ids
        )

    def join(self, request: Request, step: int) -> None:
        """From `step` on, the next to be planned, the request is steady."""
        computed = request.num_computed_tokens
        request.steady_from = request.steady_since = step
        end = request.steady_until = step + request.length_limit - self._end_margin - computed
        self._ending.setdefault(end, {})[request] = None
        due = step + len(request.block_ids) * self._block_size - computed
        if due < end:
            self._due.setdefault(due, {})[request] = None
        if self._blocks.caches_prefixes:
            first = first_block_hash(request, self._block_size, self.token)
            self._by_first_hash.setdefault(first, {})[request] = None
        self._num += 1
        self._offset_sum += computed - step
        heappush(self._longest, (step - computed, request.admission_order, request))

    def next_end(self) -> int:
        """The next step for which a member must leave; there are members."""
        return min(self._ending)

    def take_ending(self, step: int) -> list[Request]:
        """Members whose steadiness ends with the step before `step`; each must `leave` now."""
        ending = self._ending.get(step)
        return sorted(ending, key=_order) if ending else []

    def leave(self, request: Request) -> int:
        """Make the request's counters true and let it go; returns how many tokens it got that were not reported."""
        self._catch_up(request)
        if self._blocks.caches_prefixes:
            first = first_block_hash(request, self._block_size, self.token)
            if len(self._by_first_hash[first]) > 1:
                self.register_like(request, request.num_tokens // self._block_size)
            _remove(self._by_first_hash, first, request)
        due = request.steady_from + len(request.block_ids) * self._block_size - request.num_computed_tokens
        self._num -= 1
        self._offset_sum -= request.num_computed_tokens - request.steady_from
        _remove(self._ending, request.steady_until, request)
        _remove(self._due, due, request)
        in_flight = self._progress.num_planned - request.steady_from
        request.num_computed_tokens += in_flight
        request.num_output_placeholders += in_flight
        request.steady_from = -1
        self._blocks.enter_full_blocks(request, request.num_computed_tokens - request.num_output_placeholders)
        return max(self._progress.num_updated - request.steady_since, 0)

    def take_news(self) -> list[tuple[Request, int]]:
        """Members with the number of tokens that came since they joined or since they were asked last."""
        news = []
        for request in self:
            count = self._progress.num_updated - request.steady_since
            if count > 0:
                self._catch_up(request)
                request.steady_since += count
                news.append((request, count))
        return news

    def _catch_up(self, request: Request) -> None:
        """Bring a member's counters to the last output taken."""
        behind = self._progress.num_updated - request.steady_from
        if behind > 0:
            request.num_computed_tokens += behind
            request.num_tokens += behind
            request.all_token_ids.extend(self._answer * behind)
            request.steady_from += behind

    # -- blocks -------------------------------------------------------------------------------------------------------

    def num_due(self, step: int) -> int:
        """Blocks that members need for a step."""
        return len(self._due.get(step, ()))

    def take_due(self, step: int) -> list[Request]:
        """Members that need a block for a step, in the order of `running`; each must be given one by `grow`."""
        due = self._due.pop(step, None)
        return sorted(due, key=_order) if due else []

    def grow(self, members: Sequence[Request], step: int) -> None:
        """One block for each, in this order. The caller has seen that the pool has them."""
        following = step + self._block_size
        for request, block_id in zip(members, self._blocks.pool.take(len(members)), strict=True):
            request.block_ids.append(block_id)
            if following < request.steady_until:
                self._due.setdefault(following, {})[request] = None

    def register_for(self, request: Request) -> bool:
        """`register_like` before a lookup by `request`."""
        return self.register_like(request, request.num_tokens // self._block_size)

    def register_like(self, request: Request, num_blocks: int) -> bool:
        """Before a request looks up or registers its first `num_blocks` full blocks: enter those that members have
        filled with the same content, oldest first. True if a member may yet fill one of them."""
        if num_blocks < 1 or not self._by_first_hash:
            return False
        extend_block_hashes(request, 1, self._block_size)
        alike = self._find_alike(request, num_blocks)
        if not alike:
            return False
        progress, size = self._progress, self._block_size
        step = progress.num_planned - self._lag
        filled: list[tuple[int, int, int, Request]] = []
        for member in alike:
            self._catch_up(member)
            offset = member.num_computed_tokens - member.steady_from
            is_before = progress.is_amid and member.admission_order < request.admission_order
            most = min((step + is_before + offset) // size, num_blocks)
            for block in range(member.num_registered_blocks + 1, most + 1):
                tokens = slice((block - 1) * size, block * size)
                if member.all_token_ids[tokens] != request.all_token_ids[tokens]:
                    break
                filled.append((block * size - offset, member.admission_order, block, member))
        for _, _, block, member in sorted(filled):
            self._blocks.enter_full_blocks(member, block * size)
        return True

    def _find_alike(self, request: Request, num_blocks: int) -> list[Request]:
        """Members whose registered blocks begin the first `num_blocks` of a request, some of these left to fill."""
        members = self._by_first_hash.get(request.block_hashes[0])
        if not members:
            return []
        tokens, size = request.all_token_ids, self._block_size
        alike = []
        for member in members:
            count = member.num_registered_blocks
            # Mostly the last token differs already.
            if (count < num_blocks and member.all_token_ids[count * size - 1] == tokens[count * size - 1]) or not count:
                extend_block_hashes(member, count, size)
                extend_block_hashes(request, count, size)
                if member.block_hashes[:count][-1:] == request.block_hashes[:count][-1:]:
                    alike.append(member)
        return alike


def _remove(calendar: dict[Any, dict[Request, None]], key: object, request: Request) -> None:
    """Take a request out of its entry, and the entry away with its last."""
    entry = calendar.get(key)
    if entry is not None:
        entry.pop(request, None)
        if not entry:
            del calendar[key]
