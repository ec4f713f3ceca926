"""The generated workload: one row per request, columnar, and what can be said about it before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.workload.account import ImportAccount
from workbench.workload.prompts import PromptSource, TokenArray
from workbench.workload.traces.table import ImportReport

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a workload must know about the model."""

    max_model_len: int | None
    """Longest prompt + output, tokens; None where nobody knows yet (nothing is checked then)."""
    vocab_size: int
    first_token_id: int = 0
    """Lower ids are special tokens, kept out of prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoopPacing:
    """Requests are sent by users who wait for their answers; `arrival_s` of the workload means nothing then."""

    concurrency: int
    think_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPacing:
    """Turns of conversations are sent when the turn before has ended and its user has thought."""

    previous_row: IntArray
    """[n] row of the turn before; -1 for requests that arrive by themselves."""
    think_time_s: FloatArray
    """[n] from the end of the turn before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSummary:
    """Tokens of one column; percentiles are linear."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: int

    def describe(self) -> str:
        """For example `p50 60 / p95 180 / max 251 tokens`."""
        return f"p50 {self.p50:.0f} / p95 {self.p95:.0f} / max {self.max} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSummary:
    """One class of the mix."""

    num_requests: int
    input_tokens: LengthSummary | None
    output_tokens: LengthSummary | None
    num_raised: int = 0
    """Draws raised to a stated `min`."""
    num_lowered: int = 0
    """Draws lowered to a stated `max`."""
    num_clipped: int = 0
    """Prompts shortened to fit the model's window (`over_long: clip`)."""
    num_dropped: int = 0
    """Requests left out because they do not fit (`over_long: drop`)."""

    def describe(self) -> str:
        """One line for a reader."""
        if self.input_tokens is None or self.output_tokens is None:
            return "no requests"
        text = f"{self.num_requests} requests, input {self.input_tokens.describe()}, "
        text += f"output {self.output_tokens.describe()}"
        clamped = self.num_raised + self.num_lowered
        return text + (f", {clamped} lengths clamped to min or max" if clamped else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """Realised figures; None where they mean nothing (closed loop, all at once, fewer than three requests)."""

    num_requests: int
    span_s: float | None
    """Last arrival - first arrival."""
    asked_rate_per_s: float | None
    rate_per_s: float | None
    """(n - 1) / span."""
    cv: float | None
    """Standard deviation / mean of the gaps between arrivals; 1 for Poisson."""
    classes: Mapping[str, ClassSummary]
    over_long: str
    """The policy that was in force."""
    account: ImportAccount
    """Of the rows of its files, or of the requests that were generated."""
    source: ImportReport | None = None
    """Account of the trace file."""
    files: Mapping[str, ImportReport] = field(default_factory=dict)
    """Class name -> account of its file."""
    rate_drift: float | None = None
    """Highest / lowest rate of the three thirds of the requests, minus 1; None for fewer than 30."""
    num_conversations: int = 0

    def describe(self) -> list[str]:
        """Lines for a reader: the trace's account, what was realised, what policies changed."""
        lines = self.source.describe() if self.source is not None else []
        for report in self.files.values():
            lines += report.describe()
        if self.num_conversations:
            lines.append(
                f"{self.num_conversations} conversations; later turns wait for the answer before, their times below "
                "are the earliest possible"
            )
        lines.append(f"{self.num_requests} requests{self._describe_arrivals()}")
        for name, figures in self.classes.items():
            lines.append(f"{name}: {figures.describe()}")
            if figures.num_clipped or figures.num_dropped:
                lines.append(
                    f"{name}: over_long {self.over_long}: {figures.num_clipped} clipped, {figures.num_dropped} dropped"
                )
        return [*lines, f"requests: {self.account.describe()}"]

    def _describe_arrivals(self) -> str:
        if self.span_s is None or self.rate_per_s is None or self.cv is None:
            return ""
        asked = "" if self.asked_rate_per_s is None else f", asked {self.asked_rate_per_s:.3g}/s"
        drift = "" if self.rate_drift is None else f", drift between thirds {self.rate_drift:.0%}"
        return f" over {self.span_s:.3g} s{asked}, realised {self.rate_per_s:.3g}/s, CV of gaps {self.cv:.2f}{drift}"

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Timed requests in order of arrival. All columns have length n."""

    request_ids: tuple[str, ...]
    """`class-k`, k counting within the class."""
    class_names: tuple[str, ...]
    """In alphabetical order; `class_index` points into it."""
    class_index: IntArray
    arrival_s: FloatArray
    """Seconds from the start of the run, ascending; 0 in a closed loop."""
    num_prompt_tokens: IntArray
    max_output_tokens: IntArray
    """Asked for exactly: requests ignore the end-of-sequence token."""
    priority: IntArray
    session_index: IntArray
    """Requests of one conversation share it; -1 = alone."""
    turn: IntArray
    """Position in the conversation, from 0."""
    prompts: PromptSource
    closed_loop: ClosedLoopPacing | None
    """None: open loop by `arrival_s`."""
    max_concurrency: int | None
    declares_sharing: bool
    """Prompts share prefixes on purpose."""
    seed: int
    fingerprint: str
    """sha256 over everything above: equal fingerprints mean equal requests, byte for byte."""
    summary: WorkloadSummary
    turn_pacing: TurnPacing | None = None
    """None: no request waits for another."""

    def __len__(self) -> int:
        return len(self.request_ids)

    def prompt_token_ids(self, index: int) -> TokenArray:
        """[num_prompt_tokens[index]] token ids of request `index`."""
        return self.prompts.token_ids(index)
