"""Names of full blocks: a hash chain over token ids, stable across processes (and machines of one byte order)."""

from __future__ import annotations

import hashlib

from engine.request import Request

BlockHash = bytes
"""16 bytes; equal hashes mean equal token prefixes (and equal salts)."""

DIGEST_BYTES = 16


def extend_block_hashes(request: Request, num_blocks: int, block_size: int) -> None:
    """Make `request.block_hashes` cover its first `num_blocks` full blocks.

    h_i = blake2b(h_{i-1}, tokens of block i), h_{-1} = blake2b(cache salt). Lazy: blocks are hashed when they are
    looked up or registered, not when tokens arrive, which gives the same names for less work.
    """
    hashes = request.block_hashes
    start = len(hashes)
    if start >= num_blocks:
        return
    parent = hashes[-1] if hashes else _root(request.cache_salt)
    tokens = request.all_token_ids[start * block_size : num_blocks * block_size].tobytes()
    stride = block_size * 4
    blake2b = hashlib.blake2b
    for offset in range(0, len(tokens), stride):
        parent = blake2b(parent + tokens[offset : offset + stride], digest_size=DIGEST_BYTES).digest()
        hashes.append(parent)


def copy_block_hashes(request: Request, other: Request, most: int, block_size: int) -> None:
    """Take the names of up to `most` leading blocks over from a request that begins alike: cheaper than hashing.

    Equal names stand for equal prefixes, so it goes on from the last name that the request has.
    """
    mine, others = request.all_token_ids, other.all_token_ids
    start = stop = len(request.block_hashes)
    if not 0 < start <= len(other.block_hashes) or request.block_hashes[-1] != other.block_hashes[start - 1]:
        return
    while stop < min(most, len(other.block_hashes)):
        tokens = slice(stop * block_size, (stop + 1) * block_size)
        if mine[tokens] != others[tokens]:
            break
        stop += 1
    request.block_hashes += other.block_hashes[start:stop]


def first_block_hash(request: Request, block_size: int, fill: int) -> BlockHash:
    """Name of the request's first block once it is full, if the tokens still missing will all be `fill`."""
    if request.block_hashes:
        return request.block_hashes[0]
    tokens = request.all_token_ids[:block_size]
    tokens.extend([fill] * (block_size - len(tokens)))
    return hashlib.blake2b(_root(request.cache_salt) + tokens.tobytes(), digest_size=DIGEST_BYTES).digest()


def _root(cache_salt: str) -> BlockHash:
    return hashlib.blake2b(cache_salt.encode(), digest_size=DIGEST_BYTES).digest()
