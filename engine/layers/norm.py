"""Root-mean-square normalisation."""

from __future__ import annotations

import torch


class RMSNorm:
    """`weight * x / sqrt(mean(x^2) + eps)` over the last dimension.

    The statistics are taken in float32 whatever the element type, float64 included, and the result is cast back before
    the multiplication by `weight`: bit for bit what transformers computes, which token-for-token equality rests on.
    """

    __slots__ = ("eps", "weight")

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., features] -> the same shape and type."""
        x32 = x.to(torch.float32)
        scale = x32.pow(2).mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        return (x32 * scale).to(x.dtype).mul_(self.weight)
