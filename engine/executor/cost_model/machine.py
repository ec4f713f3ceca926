"""Seconds of a step on the machine that was calibrated: a few terms with a meaning each, fitted to timed steps.

    step + tokens(T) + decodes + KV read + prefill chunks + causal pairs + gathered prefix + sampled rows

`tokens(T)` is a rising line with corners: the linear layers over the step's tokens, whatever kernels they take. The
step is what passes between the starts of two steps of a busy engine, so scheduler, input preparation, sampling and the
bookkeeping of the loop around it are inside the terms, not on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.executor.cost_model.step_shape import StepShape

Array = npt.NDArray[np.float64]

CORNERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
"""Tokens at which the slope of `tokens(T)` may change; kernels change their way of working about there."""
TERMS = ("step", "decode", "kv_token", "imbalance", "prefill", "chunk", "pair", "masked_pair", "gathered", "row")
"""Names of the other coefficients, seconds per unit of each."""


def imbalance(num_decodes: int, kv_tokens: float, longest_kv: float) -> float:
    """KV tokens by which the longest sequence exceeds the mean: threads share sequences out, and wait for the last."""
    return longest_kv - kv_tokens / num_decodes if num_decodes else 0.0


def quantities(shape: StepShape) -> tuple[float, ...]:
    """How many units of each of `TERMS` a step has."""
    pairs = masked = gathered = 0.0
    for new, cached in shape.prefills:
        if cached:  # behind a prefix: keys and values are gathered, and the mask is a matrix
            masked += new * (new + cached)
            gathered += new + cached
        else:
            pairs += new * new / 2.0
    return (
        1.0,
        float(shape.num_decodes),
        shape.decode_kv_tokens,
        imbalance(shape.num_decodes, shape.decode_kv_tokens, shape.longest_kv),
        float(bool(shape.prefills)),
        float(len(shape.prefills)),
        pairs,
        masked,
        gathered,
        float(shape.num_sampled),
    )


def segments(num_tokens: float | Array) -> Array:
    """[..., len(CORNERS) - 1] tokens that lie in each piece between two corners; the last piece has no end."""
    tokens = np.asarray(num_tokens, dtype=np.float64)[..., None]
    low, high = np.array(CORNERS[:-1], dtype=np.float64), np.array(CORNERS[1:], dtype=np.float64)
    high[-1] = np.inf
    return np.clip(tokens - low, 0.0, high - low)


@dataclass(frozen=True, slots=True)
class MachineCost:
    """Predicts steps of one model on one machine; see `StepCost`."""

    slopes_s: tuple[float, ...]
    """Seconds per token in each piece between `CORNERS`, >= 0."""
    terms_s: Mapping[str, float]
    """Seconds per unit of each of `TERMS`, >= 0."""
    _token_s: list[float] = field(init=False, repr=False, compare=False)
    _terms: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        slopes = np.array(self.slopes_s, dtype=np.float64)
        table = segments(np.arange(CORNERS[-1] + 1, dtype=np.float64)) @ slopes
        object.__setattr__(self, "_token_s", table.tolist())
        object.__setattr__(self, "_terms", tuple(self.terms_s.get(name, 0.0) for name in TERMS))

    def step_s(self, shape: StepShape) -> float:
        num_tokens = shape.num_tokens
        if num_tokens == 0:
            return 0.0
        seconds = self._tokens_s(num_tokens)
        for unit_s, quantity in zip(self._terms, quantities(shape), strict=True):
            seconds += unit_s * quantity
        return seconds

    def _tokens_s(self, num_tokens: int) -> float:
        table = self._token_s
        last = len(table) - 1
        return table[num_tokens] if num_tokens <= last else table[last] + (num_tokens - last) * self.slopes_s[-1]


def design_matrix(shapes: Sequence[StepShape]) -> Array:
    """[num_steps, num_coefficients] pieces first, then `TERMS`."""
    tokens = np.array([shape.num_tokens for shape in shapes], dtype=np.float64)
    others = np.array([quantities(shape) for shape in shapes], dtype=np.float64)
    return np.concatenate([segments(tokens), others], axis=1)


def cost_of(coefficients: Array) -> MachineCost:
    """From a solution in the order of `design_matrix`."""
    num_pieces = len(CORNERS) - 1
    return MachineCost(
        slopes_s=tuple(coefficients[:num_pieces].tolist()),
        terms_s=dict(zip(TERMS, coefficients[num_pieces:].tolist(), strict=True)),
    )
