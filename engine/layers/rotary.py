"""Rotary position embedding with the scalings of `RopeSpec`."""

from __future__ import annotations

import math

import torch

from engine.model_spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """[head_dim / 2] float32: radians per position of each pair of features.

    `llama3` (Llama 3.1): wavelengths longer than `original_max_position / low_freq_factor` are slowed by `factor`,
    those shorter than `original_max_position / high_freq_factor` are kept, and those between are blended linearly.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        context = rope.original_max_position or 0
        wavelengths = 2 * math.pi / frequencies
        low, high = rope.low_freq_factor, rope.high_freq_factor
        share = (context / wavelengths - low) / (high - low)  # 0 at the low edge, 1 at the high edge
        blended = (1 - share) * frequencies / rope.factor + share * frequencies
        slowed = torch.where(wavelengths > context / low, frequencies / rope.factor, frequencies)
        is_between = (wavelengths >= context / high) & (wavelengths <= context / low)
        return torch.where(is_between, blended, slowed)
    return frequencies


class RotaryEmbedding:
    """Tables of cosines and sines for all positions; angles in float32, stored in the model's type."""

    def __init__(
        self, rope: RopeSpec, head_dim: int, num_positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(rope, head_dim))  # [num_positions, head_dim / 2]
        cos, sin = angles.cos(), angles.sin()
        # cat(-x2, x1) * cat(sin, sin) = cat(x2, x1) * cat(-sin, sin): the sign of the rotation sits in the table.
        self._cos = torch.cat((cos, cos), dim=-1).to(device=device, dtype=dtype)  # [num_positions, head_dim]
        self._sin = torch.cat((-sin, sin), dim=-1).to(device=device, dtype=dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions [num_tokens] -> cosines and signed sines, each [num_tokens, 1, head_dim]."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """x [num_tokens, num_heads, head_dim], rotated pairwise: feature i with feature i + head_dim / 2."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return (x * cos).add_(swapped.mul_(signed_sin))
