"""How many requests of a length a KV cache holds at once."""

from __future__ import annotations

import math


def max_concurrency(num_blocks: int, num_tokens: int, block_size: int) -> float:
    """Blocks / whole blocks that one request of `num_tokens` takes, rounded down to hundredths.

    vLLM's start-up line "Maximum concurrency for N tokens per request" prints the same quotient (rounded to the
    nearest), the block that is never used included.
    """
    per_request = -(-num_tokens // block_size)
    return num_blocks * 100 // per_request / 100


def num_blocks_for_requests(num_requests: float, num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_requests` requests of `num_tokens` at once: the inverse of `max_concurrency`."""
    return math.ceil(num_requests * -(-num_tokens // block_size))
