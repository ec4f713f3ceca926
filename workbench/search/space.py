"""From a scenario's search section to Optuna distributions and back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from workbench.scenario.search import Dimension

_POPULATION = 12
"""Of the genetic samplers: Optuna's 50 would be a random search for the whole of a usual study."""


def distribution_of(dimension: Dimension) -> BaseDistribution:
    """The Optuna distribution of one dimension."""
    if dimension.choices is not None:
        return CategoricalDistribution(dimension.choices)
    if dimension.low is None or dimension.high is None:
        raise ValueError("a validated dimension has choices or both bounds")
    if dimension.is_integer:
        step = 1 if dimension.step is None else int(dimension.step)
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log, step=step)
    return FloatDistribution(float(dimension.low), float(dimension.high), log=dimension.log, step=dimension.step)


def distributions_of(space: Mapping[str, Dimension]) -> dict[str, BaseDistribution]:
    return {name: distribution_of(dimension) for name, dimension in space.items()}


def rounded(params: Mapping[str, Any]) -> dict[str, Any]:
    """Floats to nine digits: a grid of step 0.05 should show 0.85, not 0.8500000000000001."""
    return {name: round(value, 9) if isinstance(value, float) else value for name, value in params.items()}


def in_space(params: Mapping[str, Any], space: Mapping[str, BaseDistribution]) -> dict[str, Any] | None:
    """`params` moved to the nearest point of the space; None if a choice is not among those offered.

    Lets a default configuration be a trial of the study even when the search bounds were drawn around other values.
    """
    moved: dict[str, Any] = {}
    for name, distribution in space.items():
        value = params[name]
        if isinstance(distribution, CategoricalDistribution):
            if value not in distribution.choices:
                return None
            moved[name] = value
        elif isinstance(distribution, IntDistribution | FloatDistribution):
            clipped = min(max(value, distribution.low), distribution.high)
            if distribution.step is not None:
                clipped = distribution.low + round((clipped - distribution.low) / distribution.step) * distribution.step
            moved[name] = int(clipped) if isinstance(distribution, IntDistribution) else float(clipped)
    return moved


def sampler_of(
    kind: str, seed: int, space: Mapping[str, BaseDistribution], *, num_known: int = 0
) -> optuna.samplers.BaseSampler:
    """The Optuna sampler that a scenario names; `num_known` trials exist already, of which it draws none again."""
    with warnings.catch_warnings():  # some are marked as experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return _sampler_of(kind, seed, space, num_known)


def _sampler_of(
    kind: str, seed: int, space: Mapping[str, BaseDistribution], num_known: int
) -> optuna.samplers.BaseSampler:
    samplers = optuna.samplers
    if kind not in ("qmc", "grid"):  # these two count their points by themselves
        seed += num_known
    match kind:
        case "tpe":
            # Few trials are the rule here: a third of the usual random start, then the model takes over.
            return samplers.TPESampler(seed=seed, n_startup_trials=6, multivariate=True)
        case "gp":
            return samplers.GPSampler(seed=seed, n_startup_trials=6)
        case "cmaes":
            return samplers.CmaEsSampler(seed=seed)
        case "nsga2":
            return samplers.NSGAIISampler(seed=seed, population_size=_POPULATION)
        case "nsga3":
            return samplers.NSGAIIISampler(seed=seed, population_size=_POPULATION)
        case "qmc":
            return samplers.QMCSampler(seed=seed, scramble=True)
        case "random":
            return samplers.RandomSampler(seed=seed)
        case "grid":
            return samplers.GridSampler(grid_points(space), seed=seed)
        case _:
            raise ValueError(f"no sampler is named {kind!r}")


def grid_points(space: Mapping[str, BaseDistribution], most: int = 6) -> dict[str, list[Any]]:
    """Up to `most` values per dimension: all choices, else evenly spread (by ratio on a log scale)."""
    points: dict[str, list[Any]] = {}
    for name, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            points[name] = list(distribution.choices)
            continue
        if not isinstance(distribution, IntDistribution | FloatDistribution):
            raise TypeError(f"no grid over {distribution!r}")
        low, high = distribution.low, distribution.high
        fractions = [i / (most - 1) for i in range(most)]
        values: list[float] = [
            low * (high / low) ** f if distribution.log else low + (high - low) * f for f in fractions
        ]
        if distribution.step is not None:
            values = [low + round((value - low) / distribution.step) * distribution.step for value in values]
        if isinstance(distribution, IntDistribution):
            values = [round(value) for value in values]
        points[name] = sorted(set(values))
    return points
