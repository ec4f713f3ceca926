"""The scenario: workload + engine + SLO + optional search, the unit of reproducibility."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from workbench.scenario.arrivals import ArrivalSpec, OverLong, TraceArrivals, is_endless, needs_count
from workbench.scenario.base import (
    Count,
    Duration,
    DurationOrZero,
    Integer,
    NonNegative,
    Spec,
    WholeNumber,
    problem,
)
from workbench.scenario.lengths import LengthSpec
from workbench.scenario.search import Search
from workbench.scenario.slo import Slo
from workbench.scenario.target import EmbeddedTarget, TargetSpec

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\s/\\:][^/\\:\n]*$")]


class SharedPrefix(Spec):
    """Tokens in front of the prompt that several requests have in common (a system prompt)."""

    tokens: Count
    """Length, in addition to the class's `input_tokens`."""
    groups: Count = 1
    """Different prefixes; each request draws one."""
    zipf_exponent: NonNegative = 0.0
    """Popularity of group k is proportional to (k + 1) ** -exponent; 0 = all alike."""


class RequestClass(Spec):
    """One kind of request in the mix."""

    name: Name
    weight: NonNegative | None = None
    """Share of the requests, relative to the other classes' weights."""
    count: Count | None = None
    """Number of requests, instead of weights and `num_requests`."""
    input_tokens: LengthSpec
    output_tokens: LengthSpec
    slo: Slo | None = None
    """Replaces the scenario's SLO for this class."""
    priority: Integer = 0
    """Lower is more urgent; used by `scheduling_policy: priority`."""
    shared_prefix: SharedPrefix | None = None


class WorkloadSpec(Spec):
    """Which requests, when."""

    num_requests: Count | None = None
    """Number of requests; for a trace the most rows to replay."""
    duration: Duration | None = None
    """Stop issuing after this long."""
    arrivals: ArrivalSpec
    max_concurrency: Count | None = None
    """The client holds requests back while this many are in flight; waiting still counts as latency."""
    over_long: OverLong | None = None
    """Requests over the model's window: `fail`, `drop` or `clip` (shorten the prompt). Default: `fail`, for a trace
    `drop`; what was dropped or clipped is counted and printed."""
    classes: tuple[RequestClass, ...] = ()
    """The mix; may be empty for a trace, whose own lengths are used then."""

    @model_validator(mode="after")
    def _check(self) -> WorkloadSpec:
        self._check_classes()
        counted = bool(self.classes) and self.classes[0].count is not None
        if counted and self.num_requests not in (None, sum(kind.count or 0 for kind in self.classes)):
            raise problem("num_requests", "must equal the sum of the classes' counts, or be left out")
        if counted and (self.duration is not None or isinstance(self.arrivals, TraceArrivals)):
            raise problem("classes", "must have weights instead of counts with duration or a trace")
        if needs_count(self.arrivals) and self.num_requests is None and not counted:
            raise problem("num_requests", f"is missing: arrivals {self.arrivals.kind} does not end by itself")
        if needs_count(self.arrivals) and self.duration is not None:
            raise problem("duration", f"does not go with arrivals {self.arrivals.kind}. Use num_requests")
        if is_endless(self.arrivals) and self.num_requests is None and self.duration is None and not counted:
            raise problem("num_requests", "is missing: give num_requests or duration")
        return self

    def _check_classes(self) -> None:
        if not self.classes and not isinstance(self.arrivals, TraceArrivals):
            raise problem("classes", "must name at least one class (only a trace has lengths of its own)")
        seen: set[str] = set()
        for index, kind in enumerate(self.classes):
            if kind.name in seen:
                raise problem(f"classes.{index}.name", "is used twice. Names must differ")
            seen.add(kind.name)
            if kind.count is not None and kind.weight is not None:
                raise problem(f"classes.{index}.count", "excludes weight. Keep one of them")
        if any(kind.count is not None for kind in self.classes):
            for index, kind in enumerate(self.classes):
                if kind.count is None:
                    raise problem(f"classes.{index}.count", "is missing: other classes have a count")
        elif self.classes and not sum(1.0 if kind.weight is None else kind.weight for kind in self.classes) > 0:
            raise problem("classes", "must have weights that do not sum to 0")


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
