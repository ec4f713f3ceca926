"""What a run leaves behind: one row per request, one row per step, columnar. Facts only, no aggregates.

Every target (embedded engine, simulated device, endpoint) produces exactly these records, so that everything after
them (metrics, verdict, report, doctor) is the same code. Times are seconds on the run's one clock, with 0 at the start
of the run; `nan` means "did not happen".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Outcome(IntEnum):
    """How a request ended."""

    COMPLETED = 0
    FAILED = 1
    """Answered with an error, or the connection broke."""
    REJECTED = 2
    """Refused on arrival (over the limits, queue limit)."""
    UNFINISHED = 3
    """Still open when the run ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTable:
    """One row per request issued, in order of `arrival_s`. All arrays have length n = number of requests."""

    request_ids: tuple[str, ...]
    class_names: tuple[str, ...]
    """Names of the workload's classes; `class_index` points into it."""
    class_index: IntArray
    arrival_s: FloatArray
    """Scheduled (intended) arrival `a`; in a closed loop the moment the user decides to send."""
    sent_s: FloatArray
    """Time `s` at which it was handed to the engine or sent over the network."""
    first_scheduled_s: FloatArray
    """First time it was part of a step, as seen by the engine; nan when only the client's view exists."""
    num_prompt_tokens: IntArray
    num_output_tokens: IntArray
    """Output tokens received."""
    num_cached_tokens: IntArray
    """Prompt tokens found in the prefix cache; -1 when unknown."""
    num_preemptions: IntArray
    """-1 when unknown."""
    outcome: IntArray
    """Values of `Outcome`."""
    token_times_s: FloatArray
    """Times of all output tokens of all requests, request after request (compressed rows)."""
    token_offsets: IntArray
    """[n + 1] row i's token times are `token_times_s[token_offsets[i] : token_offsets[i + 1]]`. An event that carries
    several tokens repeats its time."""
    num_events: IntArray
    """Events (chunks) that carried the tokens; equals `num_output_tokens` for an engine in process."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Row -> message, for rows that did not complete."""

    def __len__(self) -> int:
        return len(self.request_ids)

    def rows(self, picks: IntArray) -> RequestTable:
        """The requests of these row numbers, in their order."""
        numbers = picks.tolist()
        counts = np.diff(self.token_offsets)[picks]
        tokens = [self.token_times_s[self.token_offsets[i] : self.token_offsets[i + 1]] for i in numbers]
        values: dict[str, Any] = {
            "request_ids": tuple(self.request_ids[i] for i in numbers),
            "class_names": self.class_names,
            "token_times_s": np.concatenate([np.empty(0), *tokens]),
            "token_offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            "errors": {new: self.errors[old] for new, old in enumerate(numbers) if old in self.errors},
        }
        for each in fields(self):
            if each.name not in values:
                values[each.name] = getattr(self, each.name)[picks]
        return RequestTable(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """One row per engine step, columns as in `engine.stats.StepStats`. Empty (length 0) for a foreign endpoint."""

    start_s: FloatArray
    end_s: FloatArray
    num_running: IntArray
    num_waiting: IntArray
    num_scheduled_requests: IntArray
    num_scheduled_tokens: IntArray
    num_prefill_tokens: IntArray
    num_blocks_in_use: IntArray
    num_free_blocks: IntArray
    num_preempted: IntArray
    num_recomputed_tokens: IntArray
    num_kv_tokens: IntArray
    admission_stop: tuple[str, ...]
    replica: IntArray | None = None
    """Which engine of a fleet took the step; None: there is one. Steps of different engines overlap."""

    def __len__(self) -> int:
        return len(self.start_s)

    def by_replica(self) -> Iterator[StepTable]:
        """The steps of each engine."""
        if self.replica is None:
            yield self
            return
        for number in np.unique(self.replica):
            yield self.rows(np.flatnonzero(self.replica == number))

    def rows(self, picks: IntArray) -> StepTable:
        """The steps of these row numbers."""
        values: dict[str, Any] = {"admission_stop": tuple(self.admission_stop[i] for i in picks.tolist())}
        for each in fields(self):
            if each.name not in values:
                column = getattr(self, each.name)
                values[each.name] = None if column is None else column[picks]
        return StepTable(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything one run observed."""

    requests: RequestTable
    steps: StepTable
    duration_s: float
    """First intended arrival to last token (or to the end of observation when requests were left unfinished)."""
    clock: str
    """`wall` or `virtual`."""
    engine: Mapping[str, Any]
    """The resolved engine parameters, `num_blocks` and the reason of each automatic value included."""
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    """First lookups of each request only."""
    decision_fingerprint: str | None = None
    """Hash of the sequence of scheduling decisions; equal fingerprints mean identical schedules."""
    stopped: str | None = None
    """Why a stop rule ended the run early; None: it ran to its end."""
    notes: tuple[str, ...] = ()
    """Observations of the target that a reader should see (for example a clock anomaly)."""
    fleet: Mapping[str, Any] | None = None
    """Of several engines behind a router: each replica, their number over time, who was turned away, failures, retries
    and transfers (`loadgen.fleet.facts`). None: there is one engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRun:
    """What is known of a run while it lasts: one row per request issued so far, in order of issue."""

    now_s: float
    num_requests: int
    """Of the whole workload."""
    class_names: tuple[str, ...]
    class_index: IntArray
    arrival_s: FloatArray
    first_token_s: FloatArray
    """nan: no token yet."""
    last_token_s: FloatArray
    num_output_tokens: IntArray
    """So far."""
    max_output_tokens: IntArray
    has_ended: npt.NDArray[np.bool_]
    has_completed: npt.NDArray[np.bool_]


StopRule = Callable[[PartialRun], str | None]
"""Why a run may end now, because what it was to show is certain already; None to go on."""
