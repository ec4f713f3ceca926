"""What a scenario says before anything runs: all defaults, and the workload it generates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.model_spec import ModelSpec
from workbench.scenario import Scenario, engine_spec, load_scenario, scenario_to_dict
from workbench.services.targets import check_target, is_machine
from workbench.workload import generate_workload
from workbench.workload.records import ModelLimits


def describe_scenario(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """JSON types only. Raises `ScenarioError`, `ConfigError` or `ModelLoadError` for what could not run."""
    scenario = load_scenario(path, overrides)
    check_target(scenario, {})
    workload = generate_workload(scenario, limits_of(scenario))
    return {
        "scenario": scenario_to_dict(scenario),
        "workload": asdict(workload.summary),
        "fingerprint": workload.fingerprint,
        "doubts": list(scenario.doubts),
    }


def limits_of(scenario: Scenario) -> ModelLimits:
    """What the scenario's model takes, without building a target. Raises `ConfigError` or `ModelLoadError`."""
    config, spec = engine_spec(scenario), _spec_of(scenario)
    stated = config.model.max_model_len
    limit = stated if stated and spec.unknown_window_of else min(stated or spec.window, spec.window)
    return ModelLimits(max_model_len=limit, vocab_size=spec.vocab_size)


def _spec_of(scenario: Scenario) -> ModelSpec:
    if scenario.target.kind == "simulated" and not is_machine(scenario.target):
        from engine.simulation import find_simulated_spec

        return find_simulated_spec(scenario.model)
    from engine.models.loader import find_spec  # torch: slow to import, and a simulation needs none

    return find_spec(scenario.model)
