"""The scenario: workload + engine + SLO + optional search, the unit of reproducibility."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from engine.planned_config import stated_quantization
from workbench.scenario.base import DurationOrZero, Spec, WholeNumber, problem
from workbench.scenario.classes import Name, RequestClass
from workbench.scenario.search import (
    DEVICE_FIELDS,
    FLEET_FIELDS,
    PER_GPU,
    RATE_OBJECTIVES,
    SUSTAINABLE_RATE,
    USD_PER_MILLION,
    Search,
)
from workbench.scenario.slo import Slo
from workbench.scenario.target import EmbeddedTarget, SimulatedTarget, TargetSpec
from workbench.scenario.workload import WorkloadSpec

__all__ = ["Measurement", "RequestClass", "Scenario", "WorkloadSpec"]


class Measurement(Spec):
    """The part of the run that counts."""

    warm_up: DurationOrZero | None = None
    """Requests sent before this are left out of all figures. null: recognised in a load that stays the same and lasts a
    minute by design, none otherwise."""
    cool_down: DurationOrZero | None = None
    """Requests sent within this time before the last arrival are left out. null: see warm_up."""


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

    @model_validator(mode="after")
    def _take_stated_weights(self) -> Scenario:
        """A simulated device runs the checkpoint in the weight type that it states, unless the target says another."""
        if isinstance(self.target, SimulatedTarget) and "quantization" not in self.target.model_fields_set:
            stated = {"quantization": stated_quantization(self.model)}
            object.__setattr__(self, "target", self.target.model_copy(update=stated))
        return self

    def slo_of(self, class_name: str) -> Slo | None:
        """The SLO that binds a class."""
        for kind in self.workload.classes:
            if kind.name == class_name and kind.slo is not None:
                return kind.slo
        return self.slo

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is valid and probably not meant."""
        slos = [self.slo, *(kind.slo for kind in self.workload.classes)]
        return tuple(text for slo in slos if slo is not None for text in slo.doubts)

    @property
    def has_slo(self) -> bool:
        """Some class of requests is bound by a limit."""
        slos = [self.slo, *(kind.slo for kind in self.workload.classes)]
        return any(slo is not None and slo.limits for slo in slos)

    @model_validator(mode="after")
    def _check_objective(self) -> Scenario:
        search = self.search
        if search is None:
            return self
        for name in search.space:
            if name in DEVICE_FIELDS and self.target.kind != "simulated":
                raise problem(
                    f"search.space.{name}", f"goes with target kind simulated (got {self.target.kind}). Remove it"
                )
            if name in FLEET_FIELDS and self.target.kind == "simulated" and self.target.pools:
                raise problem(
                    f"search.space.{name}",
                    "does not go with pools, which are sized each on its own. Remove one",
                )
        if not search.objective:  # filled in once, here, before anybody has seen the scenario
            object.__setattr__(self, "search", search.model_copy(update={"objective": self._default_objective()}))
            return self
        if search.objective in (*RATE_OBJECTIVES, "goodput_rps", "slo_attainment") and not self.has_slo:
            raise problem("search.objective", f"needs an slo section (got {search.objective!r})")
        if search.objective in (PER_GPU, USD_PER_MILLION) and self.target.kind != "simulated":
            raise problem(
                "search.objective", f"{search.objective} goes with target kind simulated, whose GPUs are known"
            )
        if search.objective in RATE_OBJECTIVES and self.workload.rate_refusal:
            raise problem(
                "search.objective",
                f"{search.objective} needs arrivals with a rate: {self.workload.rate_refusal}. Use goodput_rps, or "
                "arrivals such as poisson",
            )
        return self

    def _default_objective(self) -> str:
        if not self.has_slo:
            return "output_tokens_per_s"
        return "goodput_rps" if self.workload.rate_refusal else SUSTAINABLE_RATE
