"""Which two parameters matter together: more than the sum of what each does alone.

The objective is fitted by a curve per parameter (linear and square, on the scale that was searched; an indicator per
choice). What a product of two parameters explains on top is their interaction. Searches try few points, and not at
random, so the fit's residuals are shuffled many times (Freedman & Lane 1983): an interaction is shown only if it beats
the best that chance gives any pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.metrics.records import FloatArray
from workbench.scenario.search import Dimension
from workbench.search.space import distributions_of, in_space

_SPARE = 10
"""Points beyond the coefficients of the fit, below which nothing is said."""
_SHUFFLES = 400
_SEED = 1
SIGNIFICANT = 0.05
LEAST_SHARE = 0.02
"""Share of the objective's variation below which an interaction changes no decision, however certain it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """Two parameters."""

    names: tuple[str, str]
    share: float
    """Of the objective's variation that only both together explain, what chance explains taken off; 0 to 1."""
    p_value: float
    """Chance that no interaction at all makes some pair of this study look as strong."""

    @property
    def is_shown(self) -> bool:
        return self.share >= LEAST_SHARE and self.p_value < SIGNIFICANT


def parameter_interactions(
    trials: Sequence[tuple[Mapping[str, Any], float]], space: Mapping[str, Dimension]
) -> tuple[Interaction, ...] | None:
    """Every pair, strongest first, from (parameters, objective) of complete trials.

    None where there are too few points for the fit, one parameter, or equal objectives. Points outside the space (a
    default beyond the bounds) are left out.
    """
    distributions = distributions_of(space)
    inside = [(params, value) for params, value in trials if in_space(params, distributions) == dict(params)]
    objective = np.array([value for _, value in inside], dtype=np.float64)
    if len(inside) < _SPARE or np.ptp(objective) == 0:
        return None
    linear = {name: linear_columns([params[name] for params, _ in inside], one) for name, one in space.items()}
    linear = {name: columns for name, columns in linear.items() if columns.size}
    base = orthonormal([np.ones((len(inside), 1)), *(curve_columns(columns) for columns in linear.values())])
    if len(linear) < 2 or len(inside) < base.shape[1] + _SPARE:
        return None
    pairs = {
        pair: orthonormal([_product(*(linear[name] for name in pair))], beside=base)
        for pair in itertools.combinations(linear, 2)
    }
    pairs = {pair: columns for pair, columns in pairs.items() if columns.size}
    return _tested(objective, base, pairs) if pairs else None


def _tested(
    objective: FloatArray, base: FloatArray, pairs: Mapping[tuple[str, str], FloatArray]
) -> tuple[Interaction, ...] | None:
    total = float(np.sum((objective - objective.mean()) ** 2))
    residual = objective - base @ (base.T @ objective)
    if float(residual @ residual) < 1e-9 * total:
        return None  # the curves alone explain everything: nothing is left to tell pairs apart by
    rng = np.random.default_rng(_SEED)
    shuffled = np.stack([rng.permutation(residual) for _ in range(_SHUFFLES)], axis=1)  # [points, shuffles]
    shuffled -= base @ (base.T @ shuffled)
    left, left_by_chance = float(residual @ residual), np.sum(shuffled**2, axis=0)
    # Shares of what is left: a shuffled residual has lost more of its size to the curves than the real one.
    found = {pair: float(np.sum((columns.T @ residual) ** 2)) / left for pair, columns in pairs.items()}
    by_chance = {pair: np.sum((columns.T @ shuffled) ** 2, axis=0) / left_by_chance for pair, columns in pairs.items()}
    most = np.max(np.stack(list(by_chance.values())), axis=0)
    interactions = [
        Interaction(
            names=pair,
            share=max(0.0, value - float(by_chance[pair].mean())) * left / total,
            p_value=(1 + int(np.sum(most >= value))) / (1 + _SHUFFLES),
        )
        for pair, value in found.items()
    ]
    return tuple(sorted(interactions, key=lambda each: -each.share))


def linear_columns(values: Sequence[Any], dimension: Dimension) -> FloatArray:
    """Return [points, 1] of a number, [points, choices - 1] of a choice; no column where the value never changed."""
    if dimension.choices is None:
        numbers = np.array(values, dtype=np.float64)
        numbers = np.log(numbers) if dimension.log else numbers
        spread = float(numbers.std())
        return ((numbers - numbers.mean()) / spread)[:, None] if spread > 0 else np.empty((len(values), 0))
    used = [choice for choice in dimension.choices if choice in values][1:]
    columns = np.array([[float(value == choice) for choice in used] for value in values], dtype=np.float64)
    centred: FloatArray = (columns - columns.mean(axis=0)).reshape(len(values), len(used))
    return centred


def curve_columns(columns: FloatArray) -> FloatArray:
    return np.hstack([columns, columns**2])


def _product(one: FloatArray, other: FloatArray) -> FloatArray:
    products: list[FloatArray] = [one * other[:, index : index + 1] for index in range(other.shape[1])]
    return np.hstack(products)


def orthonormal(parts: Sequence[FloatArray], beside: FloatArray | None = None) -> FloatArray:
    """Orthonormal columns that span the parts, without what `beside` spans."""
    columns = np.hstack(parts)
    if beside is not None:
        columns = columns - beside @ (beside.T @ columns)
    vectors, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return vectors[:, sizes > 1e-9 * max(1.0, float(sizes.max(initial=0.0)))]
