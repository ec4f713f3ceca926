"""How many requests of a length a KV cache holds at once."""

from __future__ import annotations


def max_concurrency(num_blocks: int, num_tokens: int, block_size: int) -> float:
    """Blocks / whole blocks that one request of `num_tokens` takes, rounded down to hundredths.

    vLLM's start-up line "Maximum concurrency for N tokens per request" prints the same quotient (rounded to the
    nearest), the block that is never used included.
    """
    per_request = -(-num_tokens // block_size)
    return num_blocks * 100 // per_request / 100
