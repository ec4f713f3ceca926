"""The gated feed-forward block."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.layers.linear import Linear


class SwiGLU:
    """`down(silu(gate(x)) * up(x))`, gate and up in one matrix."""

    __slots__ = ("_down", "_gate_up")

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        gate, up = self._gate_up(x).chunk(2, dim=-1)  # each [num_tokens, intermediate_size]
        return self._down(F.silu(gate).mul_(up))
