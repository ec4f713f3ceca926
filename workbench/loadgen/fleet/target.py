"""A fleet as a load target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.resolve import ResolvedConfig
from workbench.loadgen.fleet.loop import FleetRun
from workbench.loadgen.fleet.record import joined_record
from workbench.loadgen.simulated import SimulatedTarget
from workbench.loadgen.target import ProgressCallback
from workbench.metrics.records import RunRecord, StopRule
from workbench.scenario.target import SimulatedTarget as FleetSpec
from workbench.workload.records import ModelLimits, Workload


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
        run.to_end(deadline_s, on_progress, stop)
        engine = {**self.instance.facts(run.replicas[0].simulation), **self._fleet_facts()}
        record = joined_record(run.replicas, run.records(), engine)
        sent = ", ".join(f"{replica.name} {len(replica.run.seen.issued)}" for replica in run.replicas)
        notes = (f"requests per replica ({self.spec.routing}): {sent}",)
        return self.instance.noted(replace(record, stopped=run.stopped, notes=notes))

    def close(self) -> None:
        self.instance.close()

    def _fleet_facts(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "replicas": sum(pool.replicas for pool in spec.pools) if spec.pools else spec.replicas,
            "routing": spec.routing,
            "queue_limit": spec.queue_limit,
            "pools": [pool.model_dump() for pool in spec.pools],
        }
