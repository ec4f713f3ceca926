"""Objectives per GPU and per dollar."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.catalog import find_gpu
from workbench.scenario import Scenario, ScenarioError, parse_scenario
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.trials import TrialRecord
from workbench.services.describe import limits_of
from workbench.services.rate_objective import objective_at, rate_to_beat
from workbench.workload import generate_workload


def scenario(objective: str, kind: str = "simulated", **target: Any) -> Scenario:
    if kind == "simulated":
        target = {"gpu": "a100-80g-sxm", **target}
    document = {
        "name": "rates",
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "target": {"kind": kind, **target},
        "engine": {"max_model_len": 4096},
        "workload": {
            "num_requests": 10,
            "arrivals": {"kind": "poisson", "rate": 1},
            "classes": [{"name": "a", "input_tokens": 300, "output_tokens": 100}],
        },
        "slo": {"ttft_p95": "1s"},
        "search": {"objective": objective, "space": {"max_num_seqs": {"choices": [8, 16]}}},
    }
    return parse_scenario(json.dumps(document))


def test_rate_per_gpu_is_divided_by_all_gpus_of_the_trial() -> None:
    asked = scenario("sustainable_rate_per_gpu", tensor_parallel_size=2, replicas=3)
    workload = generate_workload(asked, limits_of(asked))
    assert objective_at(asked, {}, workload, 12.0) == 2.0


def test_cost_of_a_million_tokens_is_price_over_tokens_at_the_rate() -> None:
    asked = scenario("usd_per_million_tokens")
    price = find_gpu("l40s-48g").price_per_hour
    assert price is not None
    workload = generate_workload(asked, limits_of(asked))
    expected = price / (5.0 * 400 * 3600) * 1e6
    assert objective_at(asked, {"gpu": "l40s-48g"}, workload, 5.0) == pytest.approx(expected)


def test_rate_to_beat_on_another_gpu_gives_the_same_cost() -> None:
    asked = scenario("usd_per_million_tokens")
    workload = generate_workload(asked, limits_of(asked))
    params = {"gpu": "a100-80g-sxm"}
    outcome = TrialOutcome(
        state=TrialState.COMPLETE,
        verdict="VALID",
        objective=objective_at(asked, params, workload, 8.0),
        rate={"passed": 8.0},
    )
    rate = rate_to_beat(asked, {"gpu": "l40s-48g"}, [TrialRecord(number=0, params=params, outcome=outcome)])
    assert rate is not None
    assert objective_at(asked, {"gpu": "l40s-48g"}, workload, rate) == pytest.approx(outcome.objective)


def test_cost_on_an_engine_without_a_gpu_is_refused() -> None:
    with pytest.raises(ScenarioError, match="goes with target kind simulated"):
        scenario("usd_per_million_tokens", kind="embedded")
