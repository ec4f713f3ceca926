"""From a scenario's target section to something that takes a load: the only place that knows them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from engine.errors import ConfigError
from workbench.loadgen.target import ProgressCallback
from workbench.metrics.records import RunRecord
from workbench.scenario import Scenario, engine_spec
from workbench.scenario.target import EmbeddedTarget as EmbeddedSpec
from workbench.workload.records import ModelLimits, Workload


class RunnableTarget(Protocol):
    """A target that stands, knows its limits and can be closed."""

    @property
    def limits(self) -> ModelLimits: ...

    def run(
        self, workload: Workload, *, deadline_s: float | None = None, on_progress: ProgressCallback | None = None
    ) -> RunRecord: ...

    def close(self) -> None: ...


def build_target(scenario: Scenario, params: Mapping[str, Any]) -> RunnableTarget:
    """The scenario's target with `params` on top of its engine section.

    Raises `engine.errors.ConfigError` for a configuration that cannot run; nothing has run then.
    """
    if isinstance(scenario.target, EmbeddedSpec):
        from workbench.loadgen.embedded import EmbeddedTarget

        return EmbeddedTarget(engine_spec(scenario, **params))
    raise ConfigError(f"target: {scenario.target.kind} is not available in this version. Use kind: embedded")
