"""The Llama family of decoders over a paged KV cache: Llama, Mistral, Qwen2, Qwen3 and models built like them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from engine.attention.base import PreparedAttention
from engine.layers.attention import SelfAttention
from engine.layers.linear import Linear
from engine.layers.mlp import SwiGLU
from engine.layers.norm import RMSNorm
from engine.layers.rotary import RotaryEmbedding
from engine.model_spec import ModelSpec
from engine.models.weights import WeightReader, WeightSource

LayerCache = tuple[torch.Tensor, torch.Tensor]
"""Key and value cache of one layer, each [num_blocks, num_kv_heads, block_size, head_dim]."""


class DecoderLayer:
    """Pre-norm attention and feed-forward, each with a residual connection."""

    def __init__(self, spec: ModelSpec, read: WeightReader, index: int) -> None:
        prefix = f"model.layers.{index}."
        self._input_norm = RMSNorm(read.vector(prefix + "input_layernorm", spec.hidden_size), spec.rms_norm_eps)
        self._post_norm = RMSNorm(read.vector(prefix + "post_attention_layernorm", spec.hidden_size), spec.rms_norm_eps)
        self._attention = _self_attention(spec, read, prefix + "self_attn.")
        self._mlp = _mlp(spec, read, prefix + "mlp.")

    def __call__(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        attend: PreparedAttention,
        cache: LayerCache,
    ) -> torch.Tensor:
        """x [num_tokens, hidden_size]; changed in place and returned."""
        x += self._attention(self._input_norm(x), rotation, attend, *cache)
        x += self._mlp(self._post_norm(x))
        return x


class Decoder:
    """A whole model. Immutable after construction; the KV cache is the caller's."""

    def __init__(
        self,
        spec: ModelSpec,
        source: WeightSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_positions: int | None = None,
    ) -> None:
        """Take the weights from `source`. `num_positions` bounds the rotary tables (default: the model's own).

        Raises `ModelLoadError` for a missing tensor or one of another shape than `spec` says.
        """
        self.spec = spec
        read = WeightReader(source, dtype=dtype, device=device)
        self._embedding = read.tensor("model.embed_tokens.weight", (spec.vocab_size, spec.hidden_size))
        self._layers = [DecoderLayer(spec, read, index) for index in range(spec.num_layers)]
        self._norm = RMSNorm(read.vector("model.norm", spec.hidden_size), spec.rms_norm_eps)
        self._lm_head = Linear(
            self._embedding
            if spec.tie_word_embeddings
            else read.tensor("lm_head.weight", (spec.vocab_size, spec.hidden_size))
        )
        self._rotary = RotaryEmbedding(spec.rope, spec.head_dim, num_positions or spec.max_position, dtype, device)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: PreparedAttention,
        caches: Sequence[LayerCache],
    ) -> torch.Tensor:
        """Compute a flat batch of tokens.

        token_ids, positions [num_tokens] int64; one cache per layer. Returns hidden states before the final norm,
        [num_tokens, hidden_size].
        """
        x = F.embedding(token_ids, self._embedding)
        rotation = self._rotary.at(positions)
        for layer, cache in zip(self._layers, caches, strict=True):
            x = layer(x, rotation, attend, cache)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size]; pass only the rows that sample, it is wide."""
        return self._lm_head(self._norm(hidden))


def _self_attention(spec: ModelSpec, read: WeightReader, prefix: str) -> SelfAttention:
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    parts = (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size))
    qkv = Linear.fused(
        [read.tensor(f"{prefix}{name}.weight", (size, spec.hidden_size)) for name, size in parts],
        [read.tensor(f"{prefix}{name}.bias", (size,)) for name, size in parts] if spec.qkv_bias else None,
    )
    output = Linear(
        read.tensor(prefix + "o_proj.weight", (spec.hidden_size, q_size)),
        read.tensor(prefix + "o_proj.bias", (spec.hidden_size,)) if spec.output_bias else None,
    )
    norms = [
        RMSNorm(read.vector(prefix + name, spec.head_dim), spec.rms_norm_eps) if spec.qk_norm else None
        for name in ("q_norm", "k_norm")
    ]
    return SelfAttention(spec, qkv, output, *norms)


def _mlp(spec: ModelSpec, read: WeightReader, prefix: str) -> SwiGLU:
    wide, narrow = spec.intermediate_size, spec.hidden_size
    names = ("gate_proj", "up_proj")
    gate_up = Linear.fused(
        [read.tensor(f"{prefix}{name}.weight", (wide, narrow)) for name in names],
        [read.tensor(f"{prefix}{name}.bias", (wide,)) for name in names] if spec.mlp_bias else None,
    )
    down = Linear(
        read.tensor(prefix + "down_proj.weight", (narrow, wide)),
        read.tensor(prefix + "down_proj.bias", (narrow,)) if spec.mlp_bias else None,
    )
    return SwiGLU(gate_up, down)
