# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# (a kernel's parameters are Triton values, which Python's types cannot describe; constants are upper case)
"""Attention over a paged cache in Triton: one kernel for decodes, prefill chunks and everything between.

Grid: (sequence, tile of rows, KV head). A row is a (query token, head of the group) pair, so that all query heads that
share a KV head read its keys and values once: a decode has `group_size` rows, a chunk of n tokens `n * group_size`.
Rows past the sequence's last are masked and never stored. Keys are read in tiles of TILE positions through the block
table; a position is visible to a row if it is not after the row's token. Online softmax with float32 accumulators;
`UPCAST` widens keys and values right after the load (needed for float32 exactness and for the interpreter, whose
bfloat16 products are wrong), otherwise products run in the cache's own type on tensor cores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_MIN_DOT_ROWS = 16
"""Tensor cores take no fewer rows; a decode's rows are padded up to this."""


@triton.jit
def paged_attention_kernel(
    query_ptr,  # [num_tokens, num_heads, HEAD_DIM], heads contiguous
    key_cache_ptr,  # [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_DIM]
    value_cache_ptr,
    block_tables_ptr,  # [num_seqs, max_blocks] int32
    query_starts_ptr,  # [num_seqs + 1] int32
    seq_lens_ptr,  # [num_seqs] int32
    out_ptr,  # [num_tokens, num_heads, HEAD_DIM], contiguous
    scale,
    max_blocks,
    query_token_stride,
    num_kv_heads,
    GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    seq = tl.program_id(0)
    row_tile = tl.program_id(1)
    kv_head = tl.program_id(2)
    query_start = tl.load(query_starts_ptr + seq)
    num_queries = tl.load(query_starts_ptr + seq + 1) - query_start
    if row_tile * ROWS >= num_queries * GROUP_SIZE:
        return
    seq_len = tl.load(seq_lens_ptr + seq)

    row = row_tile * ROWS + tl.arange(0, ROWS)
    token = row // GROUP_SIZE  # within the sequence's queries
    head = kv_head * GROUP_SIZE + row % GROUP_SIZE
    is_row = token < num_queries
    dim = tl.arange(0, HEAD_DIM_PAD)
    is_dim = dim < HEAD_DIM
    is_element = is_row[:, None] & is_dim[None, :]
    flat_token = (query_start + token).to(tl.int64)
    query_offset = flat_token * query_token_stride + head * HEAD_DIM
    query = tl.load(query_ptr + query_offset[:, None] + dim[None, :], mask=is_element, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)

    last_visible = seq_len - num_queries + token  # [ROWS] position of each row's own token
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, HEAD_DIM_PAD], tl.float32)
    # No row of this tile looks further than its last token does.
    last_token = tl.minimum(((row_tile + 1) * ROWS - 1) // GROUP_SIZE, num_queries - 1)
    end = seq_len - num_queries + last_token + 1
    for start in range(0, end, TILE):
        position = start + tl.arange(0, TILE)
        is_position = position < end
        block = tl.load(block_tables_ptr + seq * max_blocks + position // BLOCK_SIZE, mask=is_position, other=0)
        slot = (block.to(tl.int64) * num_kv_heads + kv_head) * BLOCK_SIZE + position % BLOCK_SIZE
        cache_offset = slot[:, None] * HEAD_DIM + dim[None, :]
        is_cached = is_position[:, None] & is_dim[None, :]
        keys = tl.load(key_cache_ptr + cache_offset, mask=is_cached, other=0.0)
        values = tl.load(value_cache_ptr + cache_offset, mask=is_cached, other=0.0)
        if UPCAST:
            keys = keys.to(tl.float32)
            values = values.to(tl.float32)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale  # [ROWS, TILE]
        is_visible = is_position[None, :] & (position[None, :] <= last_visible[:, None])
        scores = tl.where(is_visible, scores, float("-inf"))
        # Position 0 is visible to every row, so the maximum is finite from the first tile on.
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_max[:, None])
        decay = tl.exp(row_max - new_max)
        row_sum = row_sum * decay + tl.sum(weights, axis=1)
        total = total * decay[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        row_max = new_max

    out_offset = flat_token * (num_kv_heads * GROUP_SIZE * HEAD_DIM) + head * HEAD_DIM
    result = (total / row_sum[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_offset[:, None] + dim[None, :], result, mask=is_element)


IS_INTERPRETED = not isinstance(paged_attention_kernel, triton.runtime.JITFunction)
"""TRITON_INTERPRET was set when this module was imported: kernels run as Python on CPU tensors."""


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    max_num_queries: int,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Fill `out` for the sequences described.

    query, out [num_tokens, num_heads, head_dim] (query may be a slice of fused projections, out is contiguous); caches
    [num_blocks, num_kv_heads, block_size, head_dim]; block_tables [num_seqs, max_blocks], query_starts [num_seqs + 1],
    seq_lens [num_seqs], all int32. `query_starts` index rows of `query` and `out`; `max_num_queries` is the most tokens
    of one sequence. float32, bfloat16 and float16.
    """
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    group_size = query.shape[1] // num_kv_heads
    rows = triton.next_power_of_2(min(64, max(_MIN_DOT_ROWS, max_num_queries * group_size)))
    grid = (len(seq_lens), triton.cdiv(max_num_queries * group_size, rows), num_kv_heads)
    paged_attention_kernel[grid](
        query,
        key_cache,
        value_cache,
        block_tables,
        query_starts,
        seq_lens,
        out,
        scale,
        block_tables.stride(0),
        query.stride(0),
        num_kv_heads,
        GROUP_SIZE=group_size,
        HEAD_DIM=head_dim,
        HEAD_DIM_PAD=max(_MIN_DOT_ROWS, triton.next_power_of_2(head_dim)),
        BLOCK_SIZE=block_size,
        ROWS=rows,
        TILE=64 if head_dim > 64 else 128,
        UPCAST=IS_INTERPRETED or key_cache.dtype != query.dtype or query.dtype == torch.float32,
        num_warps=4,
    )
