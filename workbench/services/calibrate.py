"""`workbench calibrate`: a profile from timed steps here, from runs or an endpoint, or from operator tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.executor.cost_model.calibration_profile import CalibrationProfile
from engine.models.loader import find_spec
from workbench.scenario import Scenario, ScenarioError, engine_spec, load_scenario
from workbench.store.atomic import write_json
from workbench.store.provenance import collect_provenance

Report = Callable[[str], None]
"""Takes one line about how far a calibration is."""


def calibrate_machine_for(source: str, overrides: Sequence[str], name: str, report: Report) -> CalibrationProfile:
    """Time the embedded engine here for a scenario file or a model's name.

    Raises `ScenarioError`, `ConfigError` or `ModelLoadError` for what cannot run.
    """
    from workbench.services.calibrate_machine import calibrate_machine

    return calibrate_machine(_engine_of(source, overrides), name=name, provenance=provenance(source), report=report)


def _engine_of(source: str, overrides: Sequence[str]) -> EngineConfig:
    if Path(source).suffix in (".yaml", ".yml"):
        return widest_engine(load_scenario(source, overrides))
    if overrides:
        raise ScenarioError("--set changes a scenario: name a scenario file instead of a model")
    try:
        find_spec(source)
    except ModelLoadError as error:
        raise ScenarioError(
            f"{source}: is no scenario file, folder of runs or tables, nor a model ({str(error).splitlines()[0]})"
        ) from error
    return EngineConfig.from_dict({"model": source})


def widest_engine(scenario: Scenario) -> EngineConfig:
    """The scenario's engine with the largest batches of its search space, so that all of it lies inside the profile."""
    changes: dict[str, Any] = {}
    for field in ("max_num_seqs", "max_num_batched_tokens"):
        space = scenario.search.space.get(field) if scenario.search is not None else None
        values = [getattr(space, "high", None), *(getattr(space, "choices", None) or ())]
        numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if numbers:
            changes[field] = int(max([*numbers, scenario.engine.get(field, 0)]))
    return engine_spec(scenario, **changes)


def provenance(source: str) -> dict[str, Any]:
    """When, where and from what a profile was made."""
    return {
        "created_at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "source": source,
        **collect_provenance(),
    }


def save_calibration(profile: CalibrationProfile, path: Path) -> None:
    """Write the profile, replacing an older one. Raises `StoreError`."""
    write_json(path, profile.to_dict())
