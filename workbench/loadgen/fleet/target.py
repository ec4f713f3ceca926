"""A fleet as a load target."""

from __future__ import annotations

from typing import Any

from engine.resolve import ResolvedConfig
from workbench.loadgen.driver import CoreBroken
from workbench.loadgen.errors import RunFailed
from workbench.loadgen.fleet.loop import FleetRun
from workbench.loadgen.fleet.record import record_of
from workbench.loadgen.simulated import SimulatedTarget
from workbench.loadgen.target import ProgressCallback
from workbench.metrics.records import RunRecord, StopRule
from workbench.scenario.target import SimulatedTarget as FleetSpec
from workbench.workload.records import ModelLimits, Workload

_FACTS = (
    "routing",
    "queue_limit",
    "rate_limit",
    "deadline_s",
    "pools",
    "link",
    "autoscaling",
    "failures",
    "retry",
)


class FleetTarget:
    """Equal engines behind a router; each `run` starts them fresh."""

    def __init__(self, instance: SimulatedTarget, spec: FleetSpec, *, seed: int) -> None:
        self.instance, self.spec, self._seed = instance, spec, seed

    @property
    def resolved(self) -> ResolvedConfig:
        """Of each replica."""
        return self.instance.resolved

    @property
    def limits(self) -> ModelLimits:
        return self.instance.limits

    @property
    def device_facts(self) -> dict[str, Any]:
        """The device as it is stored with a run."""
        return {**self.instance.device_facts, **self._fleet_facts()}

    def run(
        self,
        workload: Workload,
        *,
        deadline_s: float | None = None,
        on_progress: ProgressCallback | None = None,
        stop: StopRule | None = None,
    ) -> RunRecord:
        run = FleetRun(self.instance, self.spec, workload, self._seed)
        try:
            run.to_end(deadline_s, on_progress, stop)
        except CoreBroken as broken:
            error = broken.__cause__
            message = f"{broken.args[0]} broke: {type(error).__name__}: {error}"
            raise RunFailed(message, self._record(run)) from error
        return self.instance.noted(self._record(run))

    def _record(self, run: FleetRun) -> RunRecord:
        engine = {**self.instance.facts(run.upkeep.places[0].engine.simulation), **self._fleet_facts()}
        return record_of(run, engine)

    def close(self) -> None:
        self.instance.close()

    def _fleet_facts(self) -> dict[str, Any]:
        spec, values = self.spec, self.spec.model_dump()
        return {
            "replicas": spec.num_replicas,
            **{name: values[name] for name in _FACTS},
        }
