"""A simulated GPU as a load target: the real scheduler on a virtual clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.executor.cost_model.calibration_profile import CalibrationProfile
from engine.executor.cost_model.operators import OperatorProfile
from engine.outputs import RequestOutput
from engine.request import Request
from engine.simulation import SimulatedDevice, Simulation, build_simulation, resolve_simulated
from engine.step_log import StepLog
from workbench.loadgen.driver import drive
from workbench.loadgen.embedded import engine_facts, with_scheduler_facts
from workbench.loadgen.target import ProgressCallback
from workbench.loadgen.validity import with_note, with_validity
from workbench.metrics.records import RunRecord, StopRule
from workbench.workload.records import ModelLimits, Workload


class FrontEnd:
    """The server before the engine: requests pass it one after the other, each taking the same time.

    Requests that arrive together enter the engine one by one, as they do behind a real HTTP server; a rate over
    1 / `request_s` queues here.
    """

    def __init__(self, core: EngineCore, clock: VirtualClock, request_s: float) -> None:
        self._core, self._clock, self._request_s = core, clock, request_s
        self._free_s = clock.now()
        self._inside: deque[tuple[float, Request]] = deque()

    @property
    def step_stats(self) -> StepLog:
        return self._core.step_stats

    def add_request(self, request: Request) -> None:
        self._core.check_request(request)
        self._free_s = max(self._free_s, request.arrival_time_s) + self._request_s
        self._inside.append((self._free_s, request))

    def abort(self, request_id: str) -> None:
        self._inside = deque(entry for entry in self._inside if entry[1].request_id != request_id)
        self._core.abort(request_id)

    def settle(self) -> Sequence[RequestOutput]:
        return self._core.settle()

    def has_unfinished(self) -> bool:
        return bool(self._inside) or self._core.has_unfinished()

    def step(self, until_s: float = math.inf) -> Sequence[RequestOutput]:
        if self._inside and not self._core.has_unfinished():
            self._clock.sleep_until(self._inside[0][0])
        now_s = self._clock.now()
        while self._inside and self._inside[0][0] <= now_s:
            self._core.add_request(self._inside.popleft()[1])
        return self._core.step(min(until_s, self._inside[0][0]) if self._inside else until_s)


def catalogue_facts(profile: OperatorProfile) -> dict[str, Any]:
    """How a prediction from the catalogue alone is named, with the error of its operator models."""
    errors = {
        name: {"median": model.error.median, "p90": model.error.p90}
        for name, model in profile.models.items()
        if model.error is not None
    }
    like = profile.provenance.get("transferred_from")
    unknown = f"error unknown: not measured, efficiencies of {like}" if like else "error unknown"
    bands = ", ".join(f"{name} {error['median']:.1%} / {error['p90']:.1%}" for name, error in errors.items())
    return {
        "name": profile.gpu_id,
        "kind": "catalogue",
        "gpu": profile.gpu_id,
        "error": errors,
        "error_band": f"median / P90 error of operators: {bands}" if bands else unknown,
        **profile.provenance,
    }


class SimulatedTarget:
    """Each `run` is a fresh simulation; equal workloads give equal records.

    Raises `engine.errors.ConfigError` (or its `MemoryBudgetError`) at construction for what would not start.
    """

    def __init__(
        self, config: EngineConfig, device: SimulatedDevice, calibration: CalibrationProfile | None = None
    ) -> None:
        self._config, self._device, self._calibration = config, device, calibration
        self.resolved = resolve_simulated(config, device)

    @property
    def limits(self) -> ModelLimits:
        return ModelLimits(max_model_len=self.resolved.max_model_len, vocab_size=self.resolved.spec.vocab_size)

    @property
    def device_facts(self) -> dict[str, Any]:
        """The device as it is stored with a run."""
        return {
            "gpu": self._device.gpu.id,
            "tensor_parallel_size": self._device.tensor_parallel_size,
            "weights": self._device.precision.weights,
            "kv": self._device.precision.kv,
        }

    def run(
        self,
        workload: Workload,
        *,
        deadline_s: float | None = None,
        on_progress: ProgressCallback | None = None,
        stop: StopRule | None = None,
    ) -> RunRecord:
        simulation = self.simulation()
        record = drive(
            self.front_end(simulation),
            workload,
            simulation.clock,
            engine=self.facts(simulation),
            deadline_s=deadline_s,
            on_progress=on_progress,
            stop=stop,
        )
        return self.noted(with_scheduler_facts(record, simulation.core.scheduler))

    def simulation(self) -> Simulation:
        """A fresh engine with a clock of its own."""
        calibration = self._calibration
        return build_simulation(
            self._config,
            self._device,
            spec=self.resolved.spec,
            adjustment=None if calibration is None else calibration.adjustment,
            operators=None if calibration is None else calibration.operators,
        )

    def front_end(self, simulation: Simulation) -> FrontEnd:
        """The door to it."""
        return FrontEnd(simulation.core, simulation.clock, self._request_s)

    def facts(self, simulation: Simulation) -> dict[str, Any]:
        """Engine, device and profile as they are stored with a run."""
        calibration = self._calibration
        return {
            **engine_facts(simulation.resolved),
            **self.device_facts,
            "profile": catalogue_facts(simulation.cost.profile) if calibration is None else calibration.facts(),
        }

    def noted(self, record: RunRecord) -> RunRecord:
        """The record with the profile and its error named."""
        if self._calibration is None:
            return with_note(record)
        return with_validity(record, self._calibration, self.resolved.config)

    @property
    def _request_s(self) -> float:
        calibrated = None if self._calibration is None else self._calibration.request_s
        return self._device.overheads.request_ms * 1e-3 if calibrated is None else calibrated

    def close(self) -> None:
        pass
