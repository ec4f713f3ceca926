"""The attention block of a decoder layer: projections and rotation around an attention backend."""

from __future__ import annotations

import torch

from engine.attention.base import PreparedAttention
from engine.layers.linear import Linear
from engine.layers.norm import RMSNorm
from engine.layers.rotary import rotate
from engine.model_spec import ModelSpec


class SelfAttention:
    """Fused query-key-value projection, optional norm of heads, rotation, attention, output projection."""

    def __init__(
        self, spec: ModelSpec, qkv: Linear, output: Linear, query_norm: RMSNorm | None, key_norm: RMSNorm | None
    ) -> None:
        self._num_heads = spec.num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._qkv = qkv
        self._output = output
        self._query_norm = query_norm
        self._key_norm = key_norm

    def __call__(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        attend: PreparedAttention,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
    ) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape; `rotation` as from `RotaryEmbedding.at`."""
        heads, kv_heads = self._num_heads, self._num_kv_heads
        qkv = self._qkv(x).view(x.shape[0], heads + 2 * kv_heads, self._head_dim)
        value = qkv[:, heads + kv_heads :]  # [num_tokens, num_kv_heads, head_dim]
        if self._query_norm is not None and self._key_norm is not None:
            query = rotate(self._query_norm(qkv[:, :heads]), *rotation)
            key = rotate(self._key_norm(qkv[:, heads : heads + kv_heads]), *rotation)
        else:
            rotated = rotate(qkv[:, : heads + kv_heads], *rotation)  # one pass for queries and keys
            query, key = rotated[:, :heads], rotated[:, heads:]
        attended = attend(query, key, value, key_cache, value_cache)
        return self._output(attended.reshape(x.shape[0], heads * self._head_dim))
