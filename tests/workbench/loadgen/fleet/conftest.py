"""Runs of fleets of a simulated A100 with Qwen2.5-7B."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from workbench.scenario import Scenario
from workbench.scenario.loader import parse_scenario
from workbench.services.evaluate import RunResult, run_scenario

WORKLOAD = {
    "arrivals": {"kind": "poisson", "rate": 8},
    "classes": [{"name": "chat", "count": 120, "input_tokens": 600, "output_tokens": 80}],
}

MakeScenario = Callable[..., Scenario]
RunFleet = Callable[..., RunResult]


def fleet_scenario(
    workload: dict[str, Any] | None = None, engine: dict[str, Any] | None = None, **target: Any
) -> Scenario:
    """Of a simulated target with these keys."""
    document = {
        "name": "fleet",
        "seed": 2,
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "engine": {"max_model_len": 4096, **(engine or {})},
        "target": {"kind": "simulated", "gpu": "a100-80g-sxm", **target},
        "workload": workload or WORKLOAD,
        "slo": {"ttft_p95": "2s"},
    }
    return parse_scenario(json.dumps(document))


@pytest.fixture
def run_fleet() -> RunFleet:
    return lambda *args, **target: run_scenario(fleet_scenario(*args, **target))
