"""What a scenario says before anything runs: all defaults, and the workload it generates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.models.loader import find_spec
from workbench.scenario import engine_spec, load_scenario, scenario_to_dict
from workbench.workload import generate_workload
from workbench.workload.records import ModelLimits


def describe_scenario(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """JSON types only. Raises `ScenarioError`, `ConfigError` or `ModelLoadError` for what could not run."""
    scenario = load_scenario(path, overrides)
    config = engine_spec(scenario)
    spec = find_spec(scenario.model)
    limit = min(config.model.max_model_len or spec.max_position, spec.max_position)
    workload = generate_workload(scenario, ModelLimits(max_model_len=limit, vocab_size=spec.vocab_size))
    return {
        "scenario": scenario_to_dict(scenario),
        "workload": asdict(workload.summary),
        "fingerprint": workload.fingerprint,
    }
