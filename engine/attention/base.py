"""What an attention backend is: attention of a flat batch of tokens over a paged KV cache.

Layout of the cache, the same for all backends: one tensor for keys and one for values per layer, each
`[num_blocks, num_kv_heads, block_size, head_dim]`. Heads before positions, because a work item of every fast kernel is
(sequence, KV head) and then reads `block_size x head_dim` contiguous elements per block (measured on the CPU: up to
twice as fast as positions before heads).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """Where the tokens of one step live. Sequences with exactly one token come first."""

    num_decodes: int
    """Leading sequences that compute exactly one token in this step."""
    query_starts: Int32Array
    """[num_seqs + 1]: tokens of sequence i are rows `query_starts[i] : query_starts[i + 1]`."""
    seq_lens: Int32Array
    """[num_seqs]: positions in the cache after this step, this step's tokens included."""
    block_tables: Int32Array
    """[num_seqs, max_blocks]: block ids; entries past a sequence's last block are 0."""
    slot_mapping: Int64Array
    """[num_tokens]: flat slot `block_id * block_size + offset` that each token's key and value go to."""

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)


class PreparedAttention(Protocol):
    """Attention of one step; called once per layer."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
    ) -> torch.Tensor:
        """Write `key` and `value` to the cache, then attend.

        query [num_tokens, num_heads, head_dim]; key, value [num_tokens, num_kv_heads, head_dim]; caches
        [num_blocks, num_kv_heads, block_size, head_dim], maybe of another float type. All writes come before all
        reads: a sequence may read blocks that another one fills in this very step. Token i of a sequence sees all
        positions up to its own. Returns [num_tokens, num_heads, head_dim] in the type of `query`.
        """
        ...


class AttentionBackend(Protocol):
    """One way to compute attention."""

    def prepare(self, batch: AttentionBatch) -> PreparedAttention:
        """Do the work of a step that all layers share: index tensors, masks, uploads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What a backend is built for."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    """Factor on the scores, `head_dim ** -0.5`."""

    @property
    def group_size(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads


class KvWriter:
    """Scatters a step's keys and values into their slots."""

    def __init__(self, slot_mapping: torch.Tensor, block_size: int) -> None:
        """slot_mapping [num_tokens] int64, on the cache's device."""
        self._blocks = slot_mapping // block_size
        self._offsets = slot_mapping % block_size

    def write(self, cache: torch.Tensor, states: torch.Tensor) -> None:
        """cache [num_blocks, num_kv_heads, block_size, head_dim]; states [num_tokens, num_kv_heads, head_dim]."""
        cache[self._blocks, :, self._offsets] = states.to(cache.dtype)
