"""Arrival processes, discriminated by `kind`. Rates are requests per second."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from workbench.scenario.base import Count, Duration, DurationOrZero, NonNegative, Positive, Spec, problem

OverLong = Literal["fail", "drop", "clip"]


class AllAtOnce(Spec):
    """Every request at time 0: offline throughput."""

    kind: Literal["all_at_once"]


class ConstantArrivals(Spec):
    """Equal gaps of 1 / rate, the first request at 0."""

    kind: Literal["constant"]
    rate: Positive


class PoissonArrivals(Spec):
    """Independent exponential gaps."""

    kind: Literal["poisson"]
    rate: Positive


class GammaArrivals(Spec):
    """Gamma distributed gaps: shape = burstiness, so 1 is Poisson and less is burstier (CV = burstiness ** -0.5)."""

    kind: Literal["gamma"]
    rate: Positive
    burstiness: Positive


class ClosedLoop(Spec):
    """A fixed number of users; each sends its next request when the last one has ended and the think time is over."""

    kind: Literal["closed_loop"]
    concurrency: Count
    think_time: DurationOrZero = 0.0


class RampArrivals(Spec):
    """Poisson with a rate that moves linearly from `start_rate` to `end_rate`."""

    kind: Literal["ramp"]
    start_rate: NonNegative
    end_rate: NonNegative
    duration: Duration

    @model_validator(mode="after")
    def _check(self) -> RampArrivals:
        if not self.start_rate + self.end_rate > 0:
            raise problem("end_rate", "must be over 0 when start_rate is 0")
        return self


class Stage(Spec):
    """A rate held for a while."""

    rate: NonNegative
    duration: Duration


class StagesArrivals(Spec):
    """Poisson with a rate that steps from stage to stage."""

    kind: Literal["stages"]
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> StagesArrivals:
        if not any(stage.rate > 0 for stage in self.stages):
            raise problem("stages", "must have a rate over 0 somewhere")
        return self


class TraceColumns(Spec):
    """Which columns of a generic CSV file mean what."""

    arrival: str
    """Name of the column with the arrival time."""
    input_tokens: str
    output_tokens: str
    time_unit: Literal["s", "ms", "us", "ns", "timestamp"] = "s"
    """Unit of the arrival column; `timestamp` reads dates with times."""


class TraceArrivals(Spec):
    """Arrival times of a recorded trace, and its lengths unless the workload has classes of its own."""

    kind: Literal["trace"]
    path: Path
    """The file; relative to the scenario file, or to the working directory when given by --set."""
    format: Literal["auto", "azure", "mooncake", "burstgpt", "vidur", "csv"] = "auto"
    """`auto` looks at the content, not at the file's name."""
    columns: TraceColumns | None = None
    """For `csv`."""
    time_scale: Positive = 1.0
    """Arrival times are multiplied by this: 0.5 replays twice as fast."""
    length_scale: Positive = 1.0
    """Input and output lengths are multiplied by this (rounded, at least 1), to fit a model's window."""
    window_start: DurationOrZero = 0.0
    """Skip this much of the trace, in the trace's own seconds."""
    window_duration: Duration | None = None
    """Use this much of the trace after `window_start`, in the trace's own seconds; null = all."""
    zero_output: Literal["drop", "fail", "one"] = "drop"
    """Rows without output tokens (failed requests in BurstGPT): leave out, refuse the file, or ask for one token."""

    @model_validator(mode="after")
    def _check(self) -> TraceArrivals:
        if (self.format == "csv") != (self.columns is not None):
            raise problem("columns", "goes with format: csv, which needs arrival, input_tokens and output_tokens")
        return self


ArrivalSpec = Annotated[
    AllAtOnce
    | ConstantArrivals
    | PoissonArrivals
    | GammaArrivals
    | ClosedLoop
    | RampArrivals
    | StagesArrivals
    | TraceArrivals,
    Field(discriminator="kind"),
]


def needs_count(arrivals: Any) -> bool:
    """True where the process itself never ends and time does not bound it either."""
    return isinstance(arrivals, (AllAtOnce, ClosedLoop))


def is_endless(arrivals: Any) -> bool:
    """True where a number of requests or a duration has to say when it ends."""
    return isinstance(arrivals, (ConstantArrivals, PoissonArrivals, GammaArrivals))
