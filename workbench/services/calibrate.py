"""`workbench calibrate`: a profile from timed steps here, from runs or an endpoint, or from operator tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from engine.catalog import find_gpu
from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.executor.cost_model.calibration_profile import CalibrationProfile, Kind
from engine.models.loader import find_spec
from engine.simulation import SimulatedDevice
from workbench.scenario import Scenario, ScenarioError, engine_spec, load_scenario
from workbench.store.atomic import write_json
from workbench.store.provenance import collect_provenance
from workbench.store.runs import RUN_FILE

Report = Callable[[str], None]
"""Takes one line about how far a calibration is."""


def calibrate_machine_for(source: str, overrides: Sequence[str], name: str, report: Report) -> CalibrationProfile:
    """Time the embedded engine here for a scenario file or a model's name.

    Raises `ScenarioError`, `ConfigError` or `ModelLoadError` for what cannot run.
    """
    from workbench.services.calibrate_machine import calibrate_machine

    return calibrate_machine(_engine_of(source, overrides), name=name, provenance=provenance(source), report=report)


def calibrate_from_runs(
    source: str, *, url: str | None, gpu: str | None, model: str | None, tensor_parallel_size: int, name: str,
    report: Report,
) -> CalibrationProfile:  # fmt: skip
    """Adjust a GPU's catalogue prediction to stored runs, or to an endpoint at `url` that serves model `source`.

    Raises `ScenarioError`, `ConfigError`, `StoreError` or `RunFailed`.
    """
    from workbench.services.calibrate_runs import calibrate_runs, read_runs, run_endpoint

    if gpu is None:
        raise ScenarioError("--gpu: is missing: which GPU's prediction to adjust (`workbench catalog gpus` lists them)")
    SimulatedDevice.of(gpu)  # before minutes of load are spent
    runs = read_runs(Path(source)) if url is None else run_endpoint(url, source, report)
    report("fitting")
    return calibrate_runs(
        runs,
        gpu=gpu,
        model=model or (None if url is None else source),
        tensor_parallel_size=tensor_parallel_size,
        name=name,
        provenance=provenance(url or source),
    )


def calibrate_from_tables(tables: Path, gpu: str | None, name: str) -> CalibrationProfile:
    """Fit operator models to the tables of one GPU; `gpu` chooses where there are several. Raises `ScenarioError`."""
    from engine.executor.calibration import fit_profile

    keys = [path.stem.removeprefix("gemm_") for path in sorted(tables.glob("gemm_*.csv"))]
    if gpu is not None:
        keys = [key for key in keys if find_gpu(key).id == find_gpu(gpu).id]
    if len(keys) != 1:
        raise ScenarioError(f"{tables}: has tables of {len(keys)} such GPUs ({', '.join(keys)}). Name one with --gpu")
    try:
        operators = fit_profile(tables, keys[0])
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise ScenarioError(f"{tables}: operator tables of {keys[0]} cannot be used ({error!r})") from error
    errors = {
        key: {"median": model.error.median, "p90": model.error.p90, "num_steps": model.error.num_rows}
        for key, model in operators.models.items()
        if model.error is not None
    }
    return CalibrationProfile(
        kind="operators",
        name=name,
        gpu=operators.gpu_id,
        operators=operators,
        errors=errors,
        provenance=provenance(str(tables)),
    )


def kind_of(source: str) -> Kind:
    """What a source is calibrated as: a folder of runs, a folder of operator tables, else a scenario or model."""
    path = Path(source)
    if not path.is_dir():
        return "machine"
    if any(path.glob("gemm_*.csv")):
        return "operators"
    return "adjusted" if (path / RUN_FILE).is_file() or any(path.glob(f"*/{RUN_FILE}")) else "machine"


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
