"""A study with everything that another process needs to work on it: its scenario, its seed, where its runs go."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from workbench.scenario import Scenario, ScenarioError, engine_spec, scenario_to_dict
from workbench.scenario.search import DEVICE_FIELDS, Search, unheard_rule
from workbench.scenario.target import SimulatedTarget
from workbench.search.artifacts import RunArchive
from workbench.search.storage import BaseStorage
from workbench.search.study import SweepStudy, read_facts
from workbench.services.describe import limits_of
from workbench.workload import generate_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedStudy:
    """A study that another process started."""

    study: SweepStudy
    scenario: Scenario
    archive: RunArchive | None
    """None where this machine does not see the study's folder."""


def search_of(scenario: Scenario) -> Search:
    """Raises `ScenarioError` for a scenario that cannot be swept."""
    if scenario.search is None:
        raise ScenarioError(f"{scenario.name}: search: is missing: a sweep needs a search section with a space")
    target = scenario.target
    if target.kind == "endpoint" and target.launch is None:
        raise ScenarioError(
            f"{scenario.name}: target: an endpoint cannot be swept, its parameters are set where it was started. "
            "Give launch, the command that starts it for a configuration, or use kind: embedded or simulated"
        )
    if target.kind == "endpoint" and (unheard := target.unheard(scenario.search.space)):
        raise ScenarioError(f"{scenario.name}: target.launch: {unheard_rule(unheard[0])}")
    return scenario.search


def default_params(scenario: Scenario, search: Search) -> dict[str, Any]:
    """The scenario's own engine values of the searched parameters (the engine's defaults where it sets none).

    Raises `ConfigError` for a GPU that is not in the catalogue.
    """
    if isinstance(scenario.target, SimulatedTarget):
        from engine.catalog import find_gpu
        from engine.simulation import with_gpu_defaults

        for name in search.space["gpu"].choices or () if "gpu" in search.space else ():
            find_gpu(str(name))
        given = dict(scenario.engine)
        if scenario.target.gpu is not None:
            given = with_gpu_defaults(given, find_gpu(scenario.target.gpu))
        values = EngineConfig.from_dict({"model": scenario.model, **given}).to_dict()
        values |= scenario.target.model_dump(include=set(DEVICE_FIELDS))
    else:
        values = engine_spec(scenario).to_dict()
    return {name: values[name] for name in search.space}


def make_study(
    name: str, scenario: Scenario, seed: int, storage: BaseStorage, artifacts: Path, *, is_new: bool | None
) -> SweepStudy:
    """The study `name` in `storage`, with its facts written. `is_new` as in `SweepStudy`."""
    search = search_of(scenario)
    study = SweepStudy(
        name,
        search,
        seed=seed,
        storage=storage,
        default_params=default_params(scenario, search),
        is_new=is_new,
    )
    study.set_facts(
        {
            "scenario": scenario_to_dict(scenario),
            "seed": seed,
            "version": _version(),
            "artifacts": str(artifacts.resolve()),
        }
    )
    return study


def share_study(study: SweepStudy, scenario: Scenario) -> None:
    """Note which requests the study is about, so that processes on other machines may join it."""
    study.set_facts({"workload": generate_workload(scenario, limits_of(scenario)).fingerprint})


def join_study(name: str, storage: BaseStorage) -> JoinedStudy:
    """A study for this process to work on, its requests proved to be the same here.

    Raises `ScenarioError` for a study that is not there or that this machine cannot work on.
    """
    try:
        facts = read_facts(name, storage)
    except KeyError:
        raise ScenarioError(
            f"--study {name}: is not in this storage. Start it with: workbench sweep --storage"
        ) from None
    if "workload" not in facts:
        raise ScenarioError(f"--study {name}: was not started by workbench sweep --storage, so it names no scenario")
    if facts["version"] != _version():
        raise ScenarioError(
            f"--study {name}: was started by version {facts['version']}, this is {_version()}: their results would "
            "not be comparable. Install the same version"
        )
    scenario = Scenario.model_validate(facts["scenario"])
    here = generate_workload(scenario, limits_of(scenario)).fingerprint
    if here != facts["workload"]:
        raise ScenarioError(
            f"--study {name}: its requests come out otherwise on this machine (workload {here[:12]}, not "
            f"{facts['workload'][:12]}): do the files that the scenario names differ?"
        )
    search = search_of(scenario)
    study = SweepStudy(
        name,
        search,
        seed=facts["seed"],
        storage=storage,
        default_params=default_params(scenario, search),
        is_new=False,
    )
    folder = Path(facts["artifacts"])
    is_seen = folder.is_dir() and os.access(folder, os.W_OK)
    return JoinedStudy(study=study, scenario=scenario, archive=RunArchive(folder) if is_seen else None)


def _version() -> str:
    return metadata.version("llm-serving-workbench")
