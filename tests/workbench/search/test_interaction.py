"""Pairs of parameters on surfaces whose interactions are known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from workbench.scenario.search import Dimension
from workbench.search.importance import parameter_importances
from workbench.search.interaction import Interaction, parameter_interactions

SPACE = {
    "max_num_seqs": Dimension(low=8, high=512, log=True),
    "max_num_batched_tokens": Dimension(low=512, high=16384, log=True),
    "enable_prefix_caching": Dimension(choices=(True, False)),
}


def found(surface: Callable[[float, float, bool], float], count: int = 40, seed: int = 1, noise: float = 0.02) -> Any:
    draw = random.Random(seed)
    trials: list[tuple[Mapping[str, Any], float]] = []
    for _ in range(count):
        seqs, tokens = round(8 * 64 ** draw.random()), round(512 * 32 ** draw.random())
        params = {
            "max_num_seqs": seqs,
            "max_num_batched_tokens": tokens,
            "enable_prefix_caching": draw.random() < 0.5,
        }
        x, y = math.log(seqs / 64) / math.log(8), math.log(tokens / 2896) / math.log(5.66)  # -1 to 1
        value = surface(x, y, params["enable_prefix_caching"])
        trials.append((params, 10 + value + draw.gauss(0, noise)))
    return parameter_interactions(trials, SPACE)


def shown(found: tuple[Interaction, ...] | None) -> list[tuple[str, str]]:
    return [each.names for each in found or () if each.is_shown]


def test_interaction_of_the_smaller_of_two_limits_is_shown() -> None:
    pairs = found(lambda x, y, caching: min(x, y))
    assert shown(pairs) == [("max_num_seqs", "max_num_batched_tokens")]
    assert 0.1 < pairs[0].share < 0.6


def test_interaction_with_a_choice_is_shown() -> None:
    pairs = found(lambda x, y, caching: y + (x if caching else -x))
    assert shown(pairs) == [("max_num_seqs", "enable_prefix_caching")]


def test_interaction_of_curves_that_add_up_is_seldom_shown() -> None:
    def added(x: float, y: float, caching: bool) -> float:
        return x - x**2 + 2 * y + 0.5 * caching

    wrong = [seed for seed in range(100) if shown(found(added, count=20 + seed % 20, seed=seed, noise=0.2))]
    assert len(wrong) <= 10  # 5 % each


def test_interaction_needs_points_two_parameters_and_a_difference() -> None:
    assert found(lambda x, y, caching: x * y, count=8) is None
    assert found(lambda x, y, caching: 0.0, noise=0.0) is None
    one = {"max_num_seqs": SPACE["max_num_seqs"]}
    assert parameter_interactions([({"max_num_seqs": 8 + n}, float(n % 3)) for n in range(20)], one) is None


def test_interaction_passes_over_a_parameter_that_never_changed() -> None:
    trials = [
        ({"max_num_seqs": 8 + n, "max_num_batched_tokens": 512, "enable_prefix_caching": n % 2 == 0}, float(n % 5))
        for n in range(20)
    ]
    pairs = parameter_interactions(trials, SPACE)
    assert pairs is not None
    assert [each.names for each in pairs] == [("max_num_seqs", "enable_prefix_caching")]


def test_importance_of_a_choice_is_the_share_of_the_variance_that_it_explains() -> None:
    rng = np.random.default_rng(7)
    space = {
        "gpu": Dimension.model_validate({"choices": ["a100-80g-sxm", "h100-80g-sxm", "l40s-48g"]}),
        "max_num_seqs": Dimension.model_validate({"low": 16, "high": 256, "log": True}),
        "max_num_batched_tokens": Dimension.model_validate({"low": 512, "high": 8192}),
    }
    level = {"a100-80g-sxm": 10.0, "h100-80g-sxm": 20.0, "l40s-48g": 5.0}
    trials = []
    for _ in range(400):
        params = {
            "gpu": str(rng.choice(list(level))),
            "max_num_seqs": int(rng.integers(16, 257)),
            "max_num_batched_tokens": int(rng.integers(512, 8193)),
        }
        trials.append((params, level[params["gpu"]] + rng.normal(0.0, 4.4)))
    values = np.array([value for _, value in trials])
    groups = [values[[params["gpu"] == gpu for params, _ in trials]] for gpu in level]
    between = sum(len(group) * (group.mean() - values.mean()) ** 2 for group in groups)
    between /= float(np.sum((values - values.mean()) ** 2))

    found = parameter_importances(trials, space)

    assert found is not None
    assert 0.6 < between < 0.75
    assert found["gpu"] == pytest.approx(between, abs=0.01)
    assert found["max_num_seqs"] < 0.02
    assert found["max_num_batched_tokens"] < 0.02
