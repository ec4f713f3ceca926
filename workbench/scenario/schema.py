"""The scenario: workload + engine + SLO + optional search, the unit of reproducibility."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from workbench.scenario.base import DurationOrZero, Spec, WholeNumber, problem
from workbench.scenario.classes import Name, RequestClass
from workbench.scenario.search import Search
from workbench.scenario.slo import Slo
from workbench.scenario.target import EmbeddedTarget, TargetSpec
from workbench.scenario.workload import WorkloadSpec

__all__ = ["Measurement", "RequestClass", "Scenario", "WorkloadSpec"]


class Measurement(Spec):
    """The part of the run that counts."""

    warm_up: DurationOrZero = 0.0
    """Requests sent before this are left out of all figures."""
    cool_down: DurationOrZero = 0.0
    """Requests sent within this time before the last arrival are left out."""


class Scenario(Spec):
    """One YAML file, validated."""

    name: Name
    description: str = ""
    seed: WholeNumber = 0
    """Everything random derives from it, split by name."""
    model: Annotated[str, Field(min_length=1)] = "tiny"
    """A built-in model, a local directory or file, or a hub id."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Engine parameters by name (`engine.config`); what is absent has the engine's default."""
    target: TargetSpec = EmbeddedTarget(kind="embedded")
    workload: WorkloadSpec
    slo: Slo | None = None
    measurement: Measurement = Measurement()
    search: Search | None = None

    version: Literal[1] = 1
    """Version of this format."""

    @field_validator("engine", mode="before")
    @classmethod
    def _empty_engine(cls, value: Any) -> Any:
        return {} if value is None else value

    def slo_of(self, class_name: str) -> Slo | None:
        """The SLO that binds a class."""
        for kind in self.workload.classes:
            if kind.name == class_name and kind.slo is not None:
                return kind.slo
        return self.slo

    @model_validator(mode="after")
    def _check_objective(self) -> Scenario:
        has_slo = self.slo is not None or any(kind.slo is not None for kind in self.workload.classes)
        if self.search and self.search.objective in ("goodput_rps", "slo_attainment") and not has_slo:
            raise problem("search.objective", f"needs an slo section (got {self.search.objective!r})")
        return self
