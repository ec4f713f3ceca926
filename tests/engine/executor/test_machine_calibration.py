"""Fitting the step cost of a machine: known costs come back, and windows keep a prompt's neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from engine.executor.cost_model.machine import CORNERS, TERMS, MachineCost
from engine.executor.cost_model.step_shape import StepShape
from engine.executor.machine_calibration import TimedLoad, fit_machine, windows

TRUE = MachineCost(
    slopes_s=(0.0, *[10e-6] * (len(CORNERS) - 2)),
    terms_s={**dict.fromkeys(TERMS, 0.0), "step": 300e-6, "kv_token": 0.1e-6, "chunk": 80e-6, "pair": 5e-9},
)


def make_load(batch: int, prompt: int, rng: np.random.Generator) -> TimedLoad:
    shapes = [StepShape(0, 0.0, 0.0, ((prompt, 0),) * batch, batch)]
    shapes += [StepShape(batch, float(batch * (prompt + i)), float(prompt + i), (), batch) for i in range(20)]
    seconds = np.array([TRUE.step_s(shape) for shape in shapes]) * rng.normal(1.0, 0.01, len(shapes))
    return TimedLoad(shapes=shapes, seconds=seconds, is_saturated=np.full(len(shapes), batch > 10))


def test_fit_machine_recovers_a_known_cost_and_reports_its_error_by_regime() -> None:
    rng = np.random.default_rng(0)
    loads = [make_load(batch, prompt, rng) for batch in (1, 2, 4, 8, 16) for prompt in (10, 50, 200, 600)]
    cost, errors = fit_machine(loads)
    for shape in (StepShape(6, 900.0, 150.0, (), 6), StepShape(0, 0.0, 0.0, ((200, 0),) * 2, 2)):
        assert cost.step_s(shape) == pytest.approx(TRUE.step_s(shape), rel=0.03)
    assert errors["decode"].median < 0.02
    assert errors["prefill"].num_steps == 20
    assert set(errors) == {"decode", "prefill", "saturated"}


def test_windows_join_prefills_with_the_step_before_and_leave_out_the_one_after() -> None:
    decode, prefill = StepShape(1, 9.0, 9.0, (), 1), StepShape(0, 0.0, 0.0, ((9, 0),), 1)
    shapes = [decode, decode, prefill, prefill, decode, decode, decode]
    assert windows(shapes) == [slice(0, 1), slice(1, 4), slice(5, 6), slice(6, 7)]
    assert windows([prefill, decode, prefill]) == [slice(0, 1), slice(1, 3)]
