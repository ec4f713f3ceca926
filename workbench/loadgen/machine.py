"""This machine as a simulated target: the embedded engine's scheduler on a virtual clock, steps from a calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.build import build_scheduler
from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.errors import ConfigError
from engine.executor.cost_model.calibration_profile import CalibrationProfile
from engine.executor.simulated import SIMULATED_TOKEN, SimulatedExecutor
from engine.model_spec import ModelSpec
from engine.outputs import RequestOutput
from engine.request import Request
from engine.resolve import DeviceFacts, resolve
from engine.step_log import StepLog
from workbench.loadgen.driver import drive
from workbench.loadgen.embedded import engine_facts, with_scheduler_facts
from workbench.loadgen.target import ProgressCallback
from workbench.loadgen.validity import with_validity
from workbench.metrics.records import RunRecord, StopRule
from workbench.workload.records import ModelLimits, Workload


class SleepyCore:
    """A core whose first step after a pause starts late: timers and threads take a while to wake."""

    def __init__(self, core: EngineCore, clock: VirtualClock, wake_s: float) -> None:
        self._core, self._clock, self._wake_s = core, clock, wake_s

    @property
    def step_stats(self) -> StepLog:
        return self._core.step_stats

    def add_request(self, request: Request) -> None:
        self._core.add_request(request)

    def settle(self) -> Sequence[RequestOutput]:
        return self._core.settle()

    def abort(self, request_id: str) -> None:
        self._core.abort(request_id)

    def has_unfinished(self) -> bool:
        return self._core.has_unfinished()

    def step(self, until_s: float = math.inf) -> Sequence[RequestOutput]:
        steps = self._core.step_stats
        last_end_s = steps.end_s(len(steps) - 1) if len(steps) else self._clock.now()
        if self._clock.now() > last_end_s:
            self._clock.advance(self._wake_s)
        return self._core.step(until_s)


class MachineTarget:
    """Each `run` is a fresh simulation; equal workloads give equal records.

    Raises `engine.errors.ConfigError` (or its `MemoryBudgetError`) at construction for what could not run, or was not
    what the profile timed.
    """

    def __init__(self, config: EngineConfig, spec: ModelSpec, profile: CalibrationProfile) -> None:
        if profile.machine is None:
            raise ConfigError(f"profile: {profile.name} is of kind {profile.kind}, which needs a gpu")
        self._cost, self._profile = profile.machine, profile
        self.resolved = resolve(config, spec, DeviceFacts(**profile.device))

    @property
    def limits(self) -> ModelLimits:
        return ModelLimits(max_model_len=self.resolved.max_model_len, vocab_size=self.resolved.spec.vocab_size)

    def run(
        self,
        workload: Workload,
        *,
        deadline_s: float | None = None,
        on_progress: ProgressCallback | None = None,
        stop: StopRule | None = None,
    ) -> RunRecord:
        clock = VirtualClock()
        scheduler = build_scheduler(self.resolved)
        scheduler.foresee_decodes(SIMULATED_TOKEN)
        core = EngineCore(scheduler, SimulatedExecutor(self._cost, clock), clock)
        record = drive(
            SleepyCore(core, clock, self._profile.wake_s),
            workload,
            clock,
            engine={**engine_facts(self.resolved), "profile": self._profile.facts()},
            deadline_s=deadline_s,
            on_progress=on_progress,
            stop=stop,
        )
        return with_validity(with_scheduler_facts(record, core.scheduler), self._profile, self.resolved.config)

    def close(self) -> None:
        pass
