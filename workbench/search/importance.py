"""How much of the objective's variation each parameter explains alone, from finished trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.scenario.search import Dimension
from workbench.search.interaction import curve_columns, linear_columns, orthonormal
from workbench.search.space import distributions_of, in_space

MIN_TRIALS = 8
"""Fewer complete trials say nothing about importance."""


def parameter_importances(
    trials: Sequence[tuple[Mapping[str, Any], float]], space: Mapping[str, Dimension]
) -> dict[str, float] | None:
    """Return parameter -> share of the variance, 0 to 1, from (parameters, objective) of complete trials.

    Each share is the adjusted R square of a fit on that parameter alone: the mean of each choice, a curve over a number
    (linear and square, on the scale that was searched). Parameters that vary together share what they explain, so the
    shares need not add up to 1. None with fewer than `MIN_TRIALS` trials, fewer than two parameters or equal
    objectives. Points outside the space (a default beyond the bounds) are left out.
    """
    distributions = distributions_of(space)
    inside = [(params, value) for params, value in trials if in_space(params, distributions) == dict(params)]
    objective = np.array([value for _, value in inside], dtype=np.float64)
    if len(inside) < MIN_TRIALS or len(space) < 2 or np.ptp(objective) == 0:
        return None
    return {name: _explained([params[name] for params, _ in inside], objective, one) for name, one in space.items()}


def _explained(values: Sequence[Any], objective: np.ndarray[Any, np.dtype[np.float64]], dimension: Dimension) -> float:
    columns = linear_columns(values, dimension)
    if not columns.size:
        return 0.0
    curve = columns if dimension.choices is not None else curve_columns(columns)
    base = orthonormal([np.ones((len(values), 1)), curve])
    centred = objective - objective.mean()
    left = objective - base @ (base.T @ objective)
    freedom = len(values) - base.shape[1]
    if freedom < 1:
        return 0.0
    share = 1.0 - float(left @ left) / float(centred @ centred) * (len(values) - 1) / freedom
    return float(max(0.0, share))
