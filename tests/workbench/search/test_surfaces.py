"""The search on closed-form surfaces with noise: right optimum, "no gain" or refusal; nobody unfit wins."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.metrics.uncertainty import gain_of_pairs
from workbench.scenario.search import Dimension, Search
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.selection import best_trial
from workbench.search.storage import open_journal
from workbench.search.study import SweepStudy
from workbench.search.trials import TrialRecord

SPACE = {
    "max_num_seqs": Dimension(low=16, high=1024, log=True),
    "max_num_batched_tokens": Dimension(low=1024, high=16384, log=True),
}
DEFAULT = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
Surface = Callable[[Mapping[str, Any]], float]


def flat(params: Mapping[str, Any]) -> float:
    return 100.0


def hill(params: Mapping[str, Any]) -> float:
    """Highest at 200 sequences and 6,000 tokens."""
    seqs = math.log(params["max_num_seqs"] / 200)
    tokens = math.log(params["max_num_batched_tokens"] / 6000)
    return 100.0 * math.exp(-0.3 * seqs**2 - 0.2 * tokens**2)


def cliff(params: Mapping[str, Any]) -> float:
    """Throughput rises with the sequences until a step costs twice as much from 512 on."""
    seqs: float = params["max_num_seqs"]
    step_s = (10.0 + 0.02 * seqs) * (2.0 if seqs > 512 else 1.0)
    return seqs / step_s


def run(
    directory: Path,
    surface: Surface,
    *,
    sampler: str = "tpe",
    seed: int = 1,
    noise: float = 0.01,
    is_feasible: Callable[[Mapping[str, Any]], bool] = lambda params: True,
    keeps_slo: Callable[[Mapping[str, Any]], bool] = lambda params: True,
    trials: int = 40,
) -> list[TrialRecord]:
    """A study of the surface; noise is relative and normal."""
    draw = random.Random(seed)
    search = Search.model_validate({"space": SPACE, "sampler": sampler, "objective": "output_tokens_per_s"})
    storage = open_journal(directory / f"{sampler}-{seed}.log")
    study = SweepStudy("s", search, seed=seed, storage=storage, default_params=DEFAULT)

    def evaluate(number: int, params: Mapping[str, Any]) -> TrialOutcome:
        if not is_feasible(params):
            return TrialOutcome(state=TrialState.INFEASIBLE, reason="does not fit")
        return TrialOutcome(
            state=TrialState.COMPLETE,
            verdict="VALID",
            objective=surface(params) * (1 + draw.gauss(0, noise)),
            constraints={"ttft": -0.1 if keeps_slo(params) else 0.2},
            metrics={},
        )

    return study.run(evaluate, trials)


def confirmed_gain(surface: Surface, best: TrialRecord, noise: float, seed: int) -> Any:
    draw = random.Random(1000 + seed)
    pairs = [(surface(DEFAULT), surface(best.params)) for _ in range(3)]
    noisy = np.array([[value * (1 + draw.gauss(0, noise)) for value in pair] for pair in pairs])
    return gain_of_pairs(noisy[:, 0], noisy[:, 1], maximize=True)


@pytest.mark.parametrize(
    ("sampler", "trials", "least"), [("tpe", 40, 95.0), ("gp", 14, 90.0), ("cmaes", 40, 90.0), ("qmc", 40, 90.0)]
)
def test_search_of_a_noisy_hill_finds_its_top(sampler: str, trials: int, least: float, tmp_path: Path) -> None:
    best = best_trial(run(tmp_path, hill, sampler=sampler, trials=trials), maximize=True)
    assert best is not None
    assert hill(best.params) >= least


def test_search_of_a_cliff_stops_before_it(tmp_path: Path) -> None:
    for seed in range(3):
        best = best_trial(run(tmp_path, cliff, seed=seed), maximize=True)
        assert best is not None
        assert best.params["max_num_seqs"] <= 512
        assert cliff(best.params) >= 0.95 * cliff({"max_num_seqs": 512})


def test_search_of_a_flat_surface_finds_no_significant_gain(tmp_path: Path) -> None:
    significant = 0
    for seed in range(10):
        best = best_trial(run(tmp_path, flat, seed=seed, sampler="random", trials=12), maximize=True)
        assert best is not None
        significant += confirmed_gain(flat, best, 0.01, seed).low > 0
    assert significant <= 1  # 2.5 % each


def test_search_whose_top_is_infeasible_takes_the_best_that_fits(tmp_path: Path) -> None:
    records = run(tmp_path, hill, is_feasible=lambda params: params["max_num_seqs"] <= 100, trials=80)
    best = best_trial(records, maximize=True)
    assert best is not None
    assert best.params["max_num_seqs"] <= 100
    edge = hill({"max_num_seqs": 100, "max_num_batched_tokens": 6000})
    assert hill(best.params) >= 0.93 * edge
    shown = [record for record in records if record.outcome.state is TrialState.INFEASIBLE]
    assert all(record.outcome.objective is None for record in shown)


def test_search_in_which_nothing_keeps_the_slo_has_no_winner(tmp_path: Path) -> None:
    records = run(tmp_path, hill, keeps_slo=lambda params: False, trials=12)
    assert best_trial(records, maximize=True) is None


def test_search_in_which_nothing_is_feasible_has_no_winner(tmp_path: Path) -> None:
    assert best_trial(run(tmp_path, hill, is_feasible=lambda params: False, trials=8), maximize=True) is None


NUMBERS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.just(0.0))
OUTCOMES = st.builds(
    TrialOutcome,
    state=st.sampled_from(TrialState),
    objective=NUMBERS,
    verdict=st.sampled_from(["VALID", "SUSPECT", "INVALID", None]),
    constraints=st.dictionaries(st.sampled_from(["ttft", "tpot"]), st.floats(allow_nan=True), max_size=2),
    metrics=st.one_of(st.none(), st.just({})),
    duplicate_of=st.one_of(st.none(), st.integers(0, 5)),
)


@given(outcomes=st.lists(OUTCOMES, max_size=12), maximize=st.booleans())
def test_winner_of_random_results_is_complete_valid_finite_and_feasible(
    outcomes: list[TrialOutcome], maximize: bool
) -> None:
    records = [TrialRecord(number=i, params={}, outcome=outcome) for i, outcome in enumerate(outcomes)]
    best = best_trial(records, maximize=maximize)
    able = [
        outcome.objective
        for outcome in outcomes
        if outcome.state is TrialState.COMPLETE
        and outcome.verdict == "VALID"
        and outcome.objective is not None
        and math.isfinite(outcome.objective)
        and not any(not value <= 0 for value in outcome.constraints.values())
    ]
    if not able:
        assert best is None
        return
    assert best is not None
    assert best.outcome.objective == (max(able) if maximize else min(able))
