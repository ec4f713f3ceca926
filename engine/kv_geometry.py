"""How many bytes a token, a block and a pool of KV cache take.

The engine sizes its cache and the planner predicts it with these functions, so that the two cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import Dtype
from engine.model_spec import DTYPE_BYTES, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGeometry:
    """Shape of a paged KV cache, without its number of blocks."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int
    block_size: int
    """Token positions per block."""

    @classmethod
    def of(cls, spec: ModelSpec, *, dtype: Dtype, block_size: int) -> KvGeometry:
        """The cache of `spec` with elements of `dtype`."""
        return cls(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            element_bytes=DTYPE_BYTES[dtype],
            block_size=block_size,
        )

    @property
    def bytes_per_token(self) -> int:
        """2 (K and V) x layers x KV heads x head_dim x bytes per element."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.element_bytes

    @property
    def bytes_per_block(self) -> int:
        """One block in every layer."""
        return self.bytes_per_token * self.block_size

    def num_blocks(self, kv_bytes: int) -> int:
        """Whole blocks that fit into `kv_bytes`; 0 if none does."""
        return max(0, kv_bytes // self.bytes_per_block)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions of one request."""
        return -(-num_tokens // self.block_size)
