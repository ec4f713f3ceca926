"""A simulated GPU as a load target: the real scheduler on a virtual clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.executor.cost_model.calibration_profile import CalibrationProfile
from engine.executor.cost_model.errors import operator_errors
from engine.executor.cost_model.rank_operators import RankOperators
from engine.executor.cost_model.step import StepCostModel
from engine.outputs import RequestOutput
from engine.request import Request
from engine.simulation import SimulatedDevice, Simulation, build_simulation, resolve_simulated, uncounted
from engine.step_log import StepLog
from workbench.loadgen.driver import drive
from workbench.loadgen.embedded import engine_facts, with_scheduler_facts
from workbench.loadgen.target import ProgressCallback
from workbench.loadgen.validity import with_note, with_validity
from workbench.metrics.records import RunRecord, StopRule
from workbench.workload.records import ModelLimits, Workload

_FIRST_TURN = 0.9
"""Share of a request's time in the server that passes before others get their turn; from published bursts of 1,000
requests, which reached the engine nearly at once (gpustack, vLLM 0.11)."""


class FrontEnd:
    """The server before the engine: an event loop with two turns for every request, most of `request_s` to take it in
    and what is left to hand it on.

    A turn that has waited longer goes first. So requests that arrive alone pass in `request_s`, those of a burst reach
    the engine only when all of them were taken in, as they do behind a real HTTP server, and a rate over 1 /
    `request_s` queues here. `delay_s` comes on top without taking up the loop.
    """

    def __init__(self, core: EngineCore, clock: VirtualClock, request_s: float, delay_s: float = 0.0) -> None:
        self._core, self._clock, self._delay_s = core, clock, delay_s
        self._first_s, self._second_s = request_s * _FIRST_TURN, request_s * (1.0 - _FIRST_TURN)
        self._free_s = clock.now()
        self._first: deque[tuple[float, Request]] = deque()
        """(when it may have its first turn, request), the second turn likewise."""
        self._second: deque[tuple[float, Request]] = deque()
        self._ready: deque[tuple[float, Request]] = deque()
        """(when it enters the engine, request)."""

    @property
    def step_stats(self) -> StepLog:
        return self._core.step_stats

    def add_request(self, request: Request) -> None:
        self._core.check_request(request)
        self._turns_until(request.arrival_time_s)
        self._first.append((request.arrival_time_s, request))

    def abort(self, request_id: str) -> None:
        for queue in (self._first, self._second, self._ready):
            kept = [entry for entry in queue if entry[1].request_id != request_id]
            queue.clear()
            queue.extend(kept)
        self._core.abort(request_id)

    def settle(self) -> Sequence[RequestOutput]:
        return self._core.settle()

    def has_unfinished(self) -> bool:
        return bool(self._first or self._second or self._ready) or self._core.has_unfinished()

    def step(self, until_s: float = math.inf) -> Sequence[RequestOutput]:
        now_s = self._clock.now()
        self._turns_until(now_s)
        entry_s = self._next_entry_s()
        if entry_s < math.inf and not self._core.has_unfinished():
            # Never past a moment at which more may come, but always on: where another's first turn goes before, the
            # entry is later than it seems.
            wake_s = entry_s if entry_s > now_s or self._ready else self._next_turn()[1]
            self._clock.sleep_until(until_s if now_s < until_s < wake_s else wake_s)
            now_s = max(self._clock.now(), now_s)
            self._turns_until(now_s)
        while self._ready and self._ready[0][0] <= now_s:
            self._core.add_request(self._ready.popleft()[1])
        return self._core.step(min(until_s, self._next_entry_s()))

    def _turns_until(self, now_s: float) -> None:
        """Take all turns that end by then."""
        while self._first or self._second:
            is_first, end_s = self._next_turn()
            if end_s > now_s:
                return
            _, request = (self._first if is_first else self._second).popleft()
            self._free_s = end_s
            if is_first:
                self._second.append((end_s, request))
            else:
                self._ready.append((end_s + self._delay_s, request))

    def _next_turn(self) -> tuple[bool, float]:
        """Is it a first one, and when does it end; somebody waits for one."""
        is_first = not self._second or bool(self._first and self._first[0][0] <= self._second[0][0])
        begin_s = max(self._free_s, (self._first if is_first else self._second)[0][0])
        return is_first, begin_s + (self._first_s if is_first else self._second_s)

    def _next_entry_s(self) -> float:
        """Before this time, nothing enters the engine unless more arrives."""
        if self._ready:
            return self._ready[0][0]
        if self._second:
            return max(self._free_s, self._second[0][0]) + self._second_s
        if self._first:
            return max(self._free_s, self._first[0][0]) + self._first_s * len(self._first) + self._second_s
        return math.inf


def catalogue_facts(rank: RankOperators) -> dict[str, Any]:
    """How a prediction from the catalogue alone is named, with the error of every operator that it uses."""
    profile = rank.profile
    return {
        "name": profile.gpu_id,
        "kind": "catalogue",
        "gpu": profile.gpu_id,
        **error_facts(rank),
        **profile.provenance,
    }


def error_facts(rank: RankOperators) -> dict[str, Any]:
    """`error` of the operators used, those `unmeasured`, and both in a line."""
    found = operator_errors(rank)
    errors = {name: {"median": e.median, "p90": e.p90} for name, e in found.items() if e is not None}
    unmeasured = [name for name, error in found.items() if error is None]
    bands = ", ".join(f"{name} {error['median']:.1%} / {error['p90']:.1%}" for name, error in errors.items())
    like = rank.profile.provenance.get("transferred_from")
    missing = f"error unknown of {', '.join(unmeasured)}: not measured" + (f", efficiencies of {like}" if like else "")
    parts = [f"median / P90 error of operators: {bands}"] if bands else []
    return {
        "error": errors,
        "unmeasured": unmeasured,
        "error_band": "; ".join([*parts, missing] if unmeasured else parts),
    }


class SimulatedTarget:
    """Each `run` is a fresh simulation; equal workloads give equal records.

    Raises `engine.errors.ConfigError` (or its `MemoryBudgetError`) at construction for what would not start.
    """

    def __init__(
        self,
        config: EngineConfig,
        device: SimulatedDevice,
        calibration: CalibrationProfile | None = None,
        *,
        vllm_version: str | None = None,
    ) -> None:
        """`vllm_version`: whose defaults `config` and `device` have, to be named with a run."""
        self._config, self._device, self._calibration = config, device, calibration
        self._vllm_version = vllm_version
        self.resolved = resolve_simulated(config, device)
        self._cost: StepCostModel | None = None

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
            "vllm_version": self._vllm_version,
        }

    def run(
        self,
        workload: Workload,
        *,
        deadline_s: float | None = None,
        on_progress: ProgressCallback | None = None,
        stop: StopRule | None = None,
        after: Workload | None = None,
    ) -> RunRecord:
        """`after`: what the server served before, which is not in the record; its prefix cache still holds it."""
        simulation = self.simulation()
        if after is not None:
            drive(self.front_end(simulation), after, simulation.clock)
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
        simulation = build_simulation(
            self._config,
            self._device,
            spec=self.resolved.spec,
            adjustment=None if calibration is None else calibration.adjustment,
            operators=None if calibration is None else calibration.operators,
            cost=self._cost,
        )
        self._cost = simulation.cost
        return simulation

    def front_end(self, simulation: Simulation) -> FrontEnd:
        """The door to it."""
        return FrontEnd(simulation.core, simulation.clock, self._request_s, self._delay_s)

    def facts(self, simulation: Simulation) -> dict[str, Any]:
        """Engine, device and profile as they are stored with a run."""
        return {
            **engine_facts(simulation.resolved),
            **self.device_facts,
            "profile": self._profile_facts(simulation.cost.rank),
        }

    def _profile_facts(self, rank: RankOperators) -> dict[str, Any]:
        if self._calibration is None:
            return catalogue_facts(rank)
        facts = self._calibration.facts()
        return facts | error_facts(rank) if self._calibration.kind == "operators" else facts

    def noted(self, record: RunRecord) -> RunRecord:
        """The record with the profile, its error and what is not counted named."""
        missing = tuple(f"not counted: {each}" for each in uncounted(self.resolved.spec, self._device))
        record = replace(record, notes=(*record.notes, *missing))
        if self._calibration is None:
            return with_note(record)
        return with_validity(record, self._calibration, self.resolved.config)

    @property
    def _request_s(self) -> float:
        calibrated = None if self._calibration is None else self._calibration.request_s
        return self._device.overheads.request_ms * 1e-3 if calibrated is None else calibrated

    @property
    def _delay_s(self) -> float:
        calibration = self._calibration
        if calibration is not None and calibration.request_s is not None:
            return calibration.delay_s
        return self._device.overheads.delay_ms * 1e-3

    def close(self) -> None:
        pass
