"""A step cost adjusted to one machine: what a black-box calibration may change."""

from __future__ import annotations

from dataclasses import dataclass

from engine.executor.cost_model.step_shape import StepCost, StepShape


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

    def step_s(self, shape: StepShape) -> float:
        factor = self.adjustment.prefill_factor if shape.prefills else self.adjustment.decode_factor
        return self.base.step_s(shape) * factor + self.adjustment.step_s
