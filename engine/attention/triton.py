"""The GPU backend: a Triton kernel that reads keys and values through the block table."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBatch, AttentionShape, KvWriter
from engine.errors import ConfigError
from engine.kernels import triton_paged


class TritonBackend:
    """CUDA; on the CPU only in Triton's interpreter (TRITON_INTERPRET=1), which is for tests."""

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        if device.type != "cuda" and not triton_paged.IS_INTERPRETED:
            raise ConfigError(f"attention_backend: triton needs a CUDA device (found {device}). Use cpu")
        self._shape = shape
        self._device = device

    def prepare(self, batch: AttentionBatch) -> _PreparedTriton:
        return _PreparedTriton(self._shape, batch, self._device)


class _PreparedTriton:
    def __init__(self, shape: AttentionShape, batch: AttentionBatch, device: torch.device) -> None:
        self._scale = shape.scale
        self._writer = KvWriter(torch.from_numpy(batch.slot_mapping).to(device), shape.block_size)
        self._block_tables = torch.from_numpy(batch.block_tables).to(device)
        self._query_starts = torch.from_numpy(batch.query_starts).to(device)
        self._seq_lens = torch.from_numpy(batch.seq_lens).to(device)
        counts = batch.query_starts[1:] - batch.query_starts[:-1]
        # Decodes and chunks are launched apart: tiles of rows differ, and a decode would idle in a chunk's grid.
        self._launches = [
            (sequences, int(counts[sequences].max()))
            for sequences in (slice(0, batch.num_decodes), slice(batch.num_decodes, batch.num_seqs))
            if sequences.stop > sequences.start
        ]

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
    ) -> torch.Tensor:
        if query.dtype == torch.float64:
            raise ConfigError("attention_backend: triton computes in float32. Use torch_reference for float64")
        self._writer.write(key_cache, key)
        self._writer.write(value_cache, value)
        # The interpreter truncates when it stores bfloat16; there, torch does the rounding.
        out_dtype = torch.float32 if triton_paged.IS_INTERPRETED else query.dtype
        out = torch.empty(query.shape, dtype=out_dtype, device=query.device)
        for sequences, max_num_queries in self._launches:
            triton_paged.paged_attention(
                query,
                key_cache,
                value_cache,
                block_tables=self._block_tables[sequences],
                query_starts=self._query_starts[sequences.start : sequences.stop + 1],
                seq_lens=self._seq_lens[sequences],
                max_num_queries=max_num_queries,
                scale=self._scale,
                out=out,
            )
        return out.to(query.dtype)
