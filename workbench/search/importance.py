"""Which parameters mattered for the objective, from finished trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from workbench.scenario.search import Dimension
from workbench.search.space import distributions_of, in_space

MIN_TRIALS = 8
"""Fewer complete trials say nothing about importance."""
_QUANTILE = 0.25
"""Share of trials that count as good; PED-ANOVA's own 0.1 leaves one or two of a short study."""


def parameter_importances(
    trials: Sequence[tuple[Mapping[str, Any], float]], space: Mapping[str, Dimension], *, maximize: bool
) -> dict[str, float] | None:
    """Parameter -> share of the importance (they sum to 1), from (parameters, objective) of complete trials.

    None with fewer than `MIN_TRIALS` trials, fewer than two parameters or equal objectives. Points outside the space
    (a default beyond the bounds) are left out.
    """
    distributions = distributions_of(space)
    inside = [(dict(params), value) for params, value in trials if in_space(params, distributions) == dict(params)]
    if len(inside) < MIN_TRIALS or len(space) < 2 or len({value for _, value in inside}) < 2:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    sign = -1.0 if maximize else 1.0  # the evaluator takes lower for better
    for params, value in inside:
        study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=sign * value))
    found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=_QUANTILE))
    return found if sum(found.values()) > 0 else None
