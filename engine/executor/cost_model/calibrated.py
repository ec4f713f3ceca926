"""A step cost adjusted to one machine: what a black-box calibration may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class StepCost(Protocol):
    """Seconds of a step from its batch; see `StepCostModel.step_s`."""

    def step_s(
        self,
        *,
        num_decodes: int,
        decode_kv_tokens: float,
        longest_kv: float,
        prefills: Sequence[tuple[int, int]],
        num_sampled: int,
    ) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """Factors around the catalogue's prediction; 1 and 0 leave it as it is."""

    prefill_factor: float = 1.0
    """On steps with prefill tokens."""
    decode_factor: float = 1.0
    """On steps with decodes only."""
    step_s: float = 0.0
    """Added to every step."""


@dataclass(frozen=True, slots=True)
class AdjustedCost:
    """`base` under an adjustment."""

    base: StepCost
    adjustment: Adjustment

    def step_s(
        self,
        *,
        num_decodes: int,
        decode_kv_tokens: float,
        longest_kv: float,
        prefills: Sequence[tuple[int, int]],
        num_sampled: int,
    ) -> float:
        seconds = self.base.step_s(
            num_decodes=num_decodes,
            decode_kv_tokens=decode_kv_tokens,
            longest_kv=longest_kv,
            prefills=prefills,
            num_sampled=num_sampled,
        )
        factor = self.adjustment.prefill_factor if prefills else self.adjustment.decode_factor
        return seconds * factor + self.adjustment.step_s
