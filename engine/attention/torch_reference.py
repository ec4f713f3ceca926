"""The oracle: attention over a paged cache, written to be read. One sequence at a time, no shortcuts."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBatch, AttentionShape, KvWriter


class TorchReferenceBackend:
    """Gathers each sequence's keys and values through its block table and computes the full score matrix."""

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        self._shape = shape
        self._device = device

    def prepare(self, batch: AttentionBatch) -> _PreparedReference:
        return _PreparedReference(self._shape, batch, self._device)


class _PreparedReference:
    def __init__(self, shape: AttentionShape, batch: AttentionBatch, device: torch.device) -> None:
        self._shape = shape
        self._starts = batch.query_starts.tolist()
        self._seq_lens = batch.seq_lens.tolist()
        self._block_tables = torch.from_numpy(batch.block_tables).to(device)
        self._writer = KvWriter(torch.from_numpy(batch.slot_mapping).to(device), shape.block_size)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
    ) -> torch.Tensor:
        self._writer.write(key_cache, key)
        self._writer.write(value_cache, value)
        out = torch.empty_like(query)
        for index, seq_len in enumerate(self._seq_lens):
            rows = slice(self._starts[index], self._starts[index + 1])
            keys = self._gather(key_cache, index, seq_len)
            values = self._gather(value_cache, index, seq_len)
            out[rows] = attend_causally(query[rows], keys, values, self._shape.scale)
        return out

    def _gather(self, cache: torch.Tensor, index: int, seq_len: int) -> torch.Tensor:
        """[seq_len, num_kv_heads, head_dim]: the sequence's states in the order of positions."""
        num_blocks = -(-seq_len // self._shape.block_size)
        blocks = cache[self._block_tables[index, :num_blocks].long()]  # [blocks, kv_heads, block_size, head_dim]
        return blocks.transpose(1, 2).flatten(0, 1)[:seq_len]


def attend_causally(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention of the last `num_queries` positions of one sequence over all of it.

    query [num_queries, num_heads, head_dim]; keys, values [seq_len, num_kv_heads, head_dim]. Query i sees positions up
    to `seq_len - num_queries + i`. Scores and softmax in float32, in float64 for float64 input.
    """
    accumulate = torch.float64 if query.dtype == torch.float64 else torch.float32
    num_queries, num_heads, _ = query.shape
    seq_len, num_kv_heads, _ = keys.shape
    keys = keys.to(accumulate).repeat_interleave(num_heads // num_kv_heads, dim=1)  # [seq_len, num_heads, head_dim]
    values = values.to(accumulate).repeat_interleave(num_heads // num_kv_heads, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.to(accumulate), keys) * scale
    visible = torch.ones(num_queries, seq_len, dtype=torch.bool, device=query.device).tril(seq_len - num_queries)
    probabilities = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", probabilities, values).to(query.dtype)
