"""From a scenario's target section to something that takes a load: the only place that knows them all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from engine.catalog import find_gpu
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.executor.cost_model.calibration_profile import CalibrationProfile, load_calibration
from engine.models.loader import find_spec
from engine.resolve import resolve
from engine.simulation import SimulatedDevice
from workbench.loadgen.target import ProgressCallback
from workbench.metrics.records import RunRecord, StopRule
from workbench.scenario import Scenario, engine_spec
from workbench.scenario.search import DEVICE_FIELDS
from workbench.scenario.target import EmbeddedTarget as EmbeddedSpec
from workbench.scenario.target import EndpointTarget as EndpointSpec
from workbench.scenario.target import SimulatedTarget as SimulatedSpec
from workbench.workload.records import ModelLimits, Workload


class RunnableTarget(Protocol):
    """A target that stands, knows its limits and can be closed."""

    @property
    def limits(self) -> ModelLimits: ...

    def run(
        self,
        workload: Workload,
        *,
        deadline_s: float | None = None,
        on_progress: ProgressCallback | None = None,
        stop: StopRule | None = None,
    ) -> RunRecord: ...

    def close(self) -> None: ...


def build_target(scenario: Scenario, params: Mapping[str, Any]) -> RunnableTarget:
    """The scenario's target with `params` on top of its engine section.

    Raises `engine.errors.ConfigError` for a configuration that cannot run; nothing has run then.
    """
    if isinstance(scenario.target, EmbeddedSpec):
        from workbench.loadgen.embedded import EmbeddedTarget

        return EmbeddedTarget(engine_spec(scenario, **params))
    if isinstance(scenario.target, EndpointSpec):
        return _endpoint(scenario, scenario.target, params)
    return _simulated(scenario, scenario.target, params)


def split_params(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(of the simulated device, of the engine): a search may vary both."""
    device = {name: value for name, value in params.items() if name in DEVICE_FIELDS}
    return device, {name: value for name, value in params.items() if name not in device}


def with_device(spec: SimulatedSpec, device: Mapping[str, Any]) -> SimulatedSpec:
    """The target with other hardware. Raises `ConfigError` for values that it cannot have."""
    try:
        return SimulatedSpec.model_validate(spec.model_dump() | dict(device))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or str(first.get("ctx", {}).get("key", "target"))
        raise ConfigError(f"{name}: {first['msg']} (got {device.get(name)!r})") from None


def check_rules(scenario: Scenario, params: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for parameters that clash whatever the machine; takes no time."""
    if isinstance(scenario.target, EndpointSpec):
        return
    device, engine = split_params(params)
    if isinstance(scenario.target, SimulatedSpec):
        with_device(scenario.target, device)
        return  # defaults depend on the device: building the target checks the rest
    engine_spec(scenario, **engine)


def check_target(scenario: Scenario, params: Mapping[str, Any]) -> None:
    """Raise `ConfigError` or `ModelLoadError` for an engine that could not start here; loads no weights.

    An endpoint is not asked: it need not be up while a scenario is written.
    """
    if isinstance(scenario.target, SimulatedSpec):
        _simulated(scenario, scenario.target, params).close()
    elif isinstance(scenario.target, EmbeddedSpec):
        from engine.worker.device import probe_device

        config = engine_spec(scenario, **params)
        resolve(config, find_spec(config.model.model), probe_device(config.device.device))


def _simulated(scenario: Scenario, spec: SimulatedSpec, params: Mapping[str, Any]) -> RunnableTarget:
    from engine.simulation import with_gpu_defaults
    from workbench.loadgen.simulated import SimulatedTarget

    hardware, params = split_params(params)
    spec = with_device(spec, hardware) if hardware else spec
    calibration = None if spec.profile is None else load_calibration(spec.profile)
    if calibration is not None:
        check_calibration(calibration, scenario, spec)
    if calibration is not None and calibration.kind == "machine":
        if spec.is_fleet:
            raise ConfigError("target.replicas: a profile of a machine stands for one engine. Name a gpu for a fleet")
        from workbench.loadgen.machine import MachineTarget

        return MachineTarget(engine_spec(scenario, **params), find_spec(scenario.model), calibration)
    device = device_of(spec, calibration)
    values = {
        "model": scenario.model,
        **with_gpu_defaults({**scenario.engine, **params}, device.gpu, is_async=device.is_async),
    }
    instance = SimulatedTarget(EngineConfig.from_dict(values), device, calibration, vllm_version=spec.vllm_version)
    if not spec.is_fleet:
        return instance
    from workbench.loadgen.fleet.target import FleetTarget

    return FleetTarget(instance, spec, seed=scenario.seed)


def device_of(spec: SimulatedSpec, calibration: CalibrationProfile | None = None) -> SimulatedDevice:
    """The hardware of a target; the GPU may be named by its calibration. Raises `ConfigError`."""
    gpu = spec.gpu or (calibration.gpu if calibration is not None else None)
    if gpu is None:
        raise ConfigError("target.gpu: is missing. `workbench catalog gpus` lists what there is")
    return SimulatedDevice.of(
        gpu,
        tensor_parallel_size=spec.tensor_parallel_size,
        quantization=spec.quantization,
        kv_cache_dtype=spec.kv_cache_dtype,
        vllm_version=tuple(map(int, spec.vllm_version.split("."))),
    )


def is_machine(spec: SimulatedSpec) -> bool:
    """The target is a calibrated machine, which runs what the embedded engine runs."""
    return spec.profile is not None and load_calibration(spec.profile).kind == "machine"


def check_calibration(profile: CalibrationProfile, scenario: Scenario, spec: SimulatedSpec) -> None:
    """Raise `ConfigError` where a profile says nothing about a scenario: another model, GPU or kind of device."""
    if profile.model is not None and profile.model != scenario.model:
        raise ConfigError(
            f"target.profile: {profile.name} was made with model {profile.model}, the scenario has {scenario.model}. "
            f"Calibrate again: `workbench calibrate {scenario.model}`"
        )
    if profile.kind == "machine":
        given = [name for name in ("gpu", "quantization", "kv_cache_dtype") if getattr(spec, name) is not None]
        if given or spec.tensor_parallel_size != 1:
            raise ConfigError(
                f"target.{given[0] if given else 'tensor_parallel_size'}: does not go with profile {profile.name}, "
                "which is of the machine that it was made on. Remove it"
            )
    elif spec.gpu is not None and profile.gpu is not None and find_gpu(spec.gpu).id != profile.gpu:
        raise ConfigError(f"target.gpu: {spec.gpu}, but profile {profile.name} is of {profile.gpu}. Remove one of them")
    elif profile.tensor_parallel_size not in (None, spec.tensor_parallel_size):
        raise ConfigError(
            f"target.tensor_parallel_size: {spec.tensor_parallel_size}, but profile {profile.name} was made with "
            f"{profile.tensor_parallel_size}. Calibrate again"
        )


def _endpoint(scenario: Scenario, spec: EndpointSpec, params: Mapping[str, Any]) -> RunnableTarget:
    from workbench.loadgen.endpoint import FALLBACK_VOCAB_SIZE, EndpointTarget

    def connect(url: str) -> EndpointTarget:
        return EndpointTarget(
            url,
            model=spec.model,
            api_key_env=spec.api_key_env,
            timeout_s=spec.timeout_s,
            vocab_size=_find_vocab_size(scenario.model) or FALLBACK_VOCAB_SIZE,
        )

    if spec.launch is not None:
        from workbench.services.launch import launch_command

        command, url = launch_command(scenario, spec, params)
        from workbench.loadgen.launched import LaunchedTarget

        return LaunchedTarget(command, url, ready_within_s=spec.ready_within, connect=lambda: connect(url))
    if params:
        raise ConfigError(
            f"target: the engine parameters of an endpoint are set where it was started (got {', '.join(params)}). "
            "Use kind: embedded to tune them, or launch: the command that starts it"
        )
    return connect(spec.url)


def _find_vocab_size(model: str) -> int | None:
    """Of the scenario's model where that is on this machine; None otherwise: nothing is downloaded for it."""
    if "/" in model and not Path(model).expanduser().exists():
        return None
    try:
        return find_spec(model).vocab_size
    except ModelLoadError:
        return None
