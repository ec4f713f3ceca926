"""Affine maps; several that read the same input are one fused matrix."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Linear:
    """`x @ weight.T + bias`, weight [out_features, in_features]."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, in_features] -> [num_tokens, out_features]."""
        return F.linear(x, self.weight, self.bias)

    @classmethod
    def fused(cls, weights: list[torch.Tensor], biases: list[torch.Tensor] | None) -> Linear:
        """One map whose output is the concatenation of the given maps' outputs."""
        return cls(torch.cat(weights), torch.cat(biases) if biases else None)
