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


class OnOffArrivals(Spec):
    """Bursts: Poisson at `rate` for `on`, at `off_rate` for `off`, and again."""

    kind: Literal["on_off"]
    rate: Positive
    on: Duration
    off: Duration
    off_rate: NonNegative = 0.0


class DiurnalArrivals(Spec):
    """Poisson with a rate that follows the day: mean * (1 + swing * cos), highest at `peak_at` after the start."""

    kind: Literal["diurnal"]
    mean_rate: Positive
    peak_to_mean: Annotated[float, Field(strict=True, ge=1, le=2)] = 1.5
    """Highest rate / mean rate, 1 to 2; at 2 the rate falls to 0 once per period."""
    period: Duration = 86_400.0
    peak_at: DurationOrZero = 0.0


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
    """Which columns of a generic CSV file, or keys of a generic JSON file (`a.b` for nested ones), mean what."""

    arrival: str | None = None
    """Name of the column with the arrival time; null = the file has none."""
    input_tokens: str
    output_tokens: str
    time_unit: Literal["auto", "s", "ms", "us", "ns", "timestamp"] = "auto"
    """Unit of the arrival column; `timestamp` reads dates with times. auto: what the data shows."""
    session: str | None = None
    """Column that names the conversation a request belongs to."""
    status: str | None = None
    """Column that says how the request ended: a state (ok, 200, success, completed, stop, ... are no failures), or a
    boolean that is read by its name (`cancelled: true` failed, `success: true` did not)."""


TraceFormatName = Literal[
    "auto",
    "azure",
    "mooncake",
    "burstgpt",
    "vidur",
    "agentic",
    "sharegpt",
    "openai-batch",
    "vllm-custom",
    "requests",
    "workbench",
    "csv",
    "jsonl",
]
ZeroOutput = Literal["drop", "fail", "one", "clip"]


class RequestFile(Spec):
    """A file of recorded requests and what to do with its odd rows."""

    path: Path
    """The file; relative to the scenario file, or to the working directory when given by --set."""
    format: TraceFormatName = "auto"
    """`auto` looks at the content, not at the file's name."""
    columns: TraceColumns | None = None
    """For `csv` and `jsonl`."""
    tokenizer: str | None = None
    """For files of text: a local directory, a hub id that is on this machine, or `smollm2-135m`; null = one token per
    byte."""
    zero_output: ZeroOutput = "drop"
    """Rows without output tokens (failed requests in BurstGPT): leave out, refuse the file, or ask for one token
    (`one`, or `clip`)."""
    failed: Literal["drop", "keep", "fail"] = "drop"
    """Rows that the file says have failed."""
    length_scale: Positive = 1.0
    """Input and output lengths are multiplied by this (rounded, at least 1), to fit a model's window."""

    @model_validator(mode="after")
    def _check_columns(self) -> RequestFile:
        if self.format != "auto" and (self.format in ("csv", "jsonl")) != (self.columns is not None):
            raise problem("columns", "goes with format: csv or jsonl, which need input_tokens and output_tokens")
        return self


class TraceArrivals(RequestFile):
    """Arrival times of a recorded trace, and its lengths unless the workload has classes of its own."""

    kind: Literal["trace"]
    time_scale: Positive = 1.0
    """Arrival times are multiplied by this: 0.5 replays twice as fast."""
    rate: Positive | None = None
    """Instead of `time_scale`: stretch the times so that this mean rate results (requests/s; said in the report)."""
    window_start: DurationOrZero = 0.0
    """Skip this much of the trace, in the trace's own seconds."""
    window_duration: Duration | None = None
    """Use this much of the trace after `window_start`, in the trace's own seconds; null = all."""
    window_min_rate: NonNegative = 0.0
    """Use the longest stretch of the trace in which every minute has at least this rate, in the trace's own requests/s;
    0 = no such window."""
    loop: Count = 1
    """Replay the window this many times, one after another."""

    @model_validator(mode="after")
    def _check(self) -> TraceArrivals:
        if self.rate is not None and self.time_scale != 1.0:
            raise problem("rate", "excludes time_scale. Keep one of them")
        return self


OpenArrivalSpec = Annotated[
    AllAtOnce
    | ConstantArrivals
    | PoissonArrivals
    | GammaArrivals
    | OnOffArrivals
    | DiurnalArrivals
    | RampArrivals
    | StagesArrivals,
    Field(discriminator="kind"),
]
"""What a class of its own may have: nothing that waits for answers, and no file."""

ArrivalSpec = Annotated[
    AllAtOnce
    | ConstantArrivals
    | PoissonArrivals
    | GammaArrivals
    | OnOffArrivals
    | DiurnalArrivals
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
    return isinstance(arrivals, (ConstantArrivals, PoissonArrivals, GammaArrivals, OnOffArrivals, DiurnalArrivals))


def rate_refusal(arrivals: Any) -> str | None:
    """Why there is no rate that could be scaled and held; None where there is one."""
    if isinstance(arrivals, (ClosedLoop, AllAtOnce)):
        return f"arrivals of kind {arrivals.kind} have no rate"
    if isinstance(arrivals, (RampArrivals, StagesArrivals)):
        return f"arrivals of kind {arrivals.kind} change their rate and reach no steady state"
    return None
