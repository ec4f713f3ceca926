"""The free queue against vLLM's rules spelled out on a plain list."""

from __future__ import annotations

import random

import pytest

from engine.core.block_pool import BlockPool
from engine.request import Request
from engine.sampling_params import SamplingParams


class PlainPool:
    """VLLM_SEMANTICS, sections 0, 3 and 6, without regard to speed."""

    def __init__(self, num_blocks: int) -> None:
        self.queue = list(range(1, num_blocks))
        self.refs = [0] * num_blocks
        self.cached: set[int] = set()
        self.evictions: list[int] = []

    def take(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            self.refs[block] = 1
            if block in self.cached:
                self.cached.remove(block)
                self.evictions.append(block)
        return taken

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                self.queue.remove(block)
            self.refs[block] += 1

    def release(self, blocks: list[int]) -> list[int]:
        freed = []
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                freed.append(block)
        self.queue += [block for block in freed if block in self.cached]
        self.queue = [block for block in freed if block not in self.cached] + self.queue
        return freed


@pytest.mark.parametrize("seed", range(20))
def test_pool_under_random_commands_orders_its_queue_as_the_plain_rules_do(seed: int) -> None:
    rng = random.Random(seed)
    num_blocks = rng.choice([4, 12, 60])
    pool, plain = BlockPool(num_blocks, 1), PlainPool(num_blocks)
    tables: list[list[int]] = []
    for number in range(600):
        command = rng.choice(["take", "take", "release", "release", "touch", "forget"])
        if command == "take" and plain.queue:
            count = rng.randint(1, min(len(plain.queue), 8))
            table = pool.take(count)
            assert table == plain.take(count)
            full = rng.randint(0, count)
            if full:
                request = Request(f"r{number}", [number] * count, SamplingParams(max_tokens=1))
                pool.register(request, 0, table[:full])
                plain.cached |= set(table[:full])
            tables.append(table)
        elif command == "release" and tables:
            table = tables.pop(rng.randrange(len(tables)))
            assert pool.release(table) == plain.release(table)
        elif command == "touch" and plain.cached:
            table = rng.sample(sorted(plain.cached), rng.randint(1, len(plain.cached)))
            pool.touch(table)
            plain.touch(table)
            tables.append(table)
        elif command == "forget" and (held := [b for table in tables for b in table if b in plain.cached]):
            block = rng.choice(held)
            pool.forget(block)
            plain.cached.remove(block)
        assert pool.free_queue() == plain.queue
        assert pool.num_free == len(plain.queue)
    assert pool.evictions == plain.evictions
    pool.check_integrity(tables)
