"""What the load generator's process is told, and what it tells back. Plain JSON; no Locust here.

The plan is one object in a file. Results are one line per request that was issued, written when it ends. Progress is
one line on stdout now and then. Times are seconds from the start of the run on the worker's monotonic clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench.metrics.records import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoopPlan:
    """Users who wait for their answers."""

    concurrency: int
    think_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One run."""

    url: str
    """Of the server, without /v1."""
    api_key_env: str | None
    """Environment variable that holds the key; the key itself is in no file."""
    timeout_s: float
    """Longest wait for one whole answer."""
    arrivals_s: Sequence[float]
    """Intended arrival of each request, ascending; not used in a closed loop."""
    bodies: Sequence[str]
    """JSON body of each request, ready to send."""
    closed_loop: ClosedLoopPlan | None
    max_concurrency: int | None
    deadline_s: float | None
    """The run ends here at the latest; None: when every request has ended."""

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> LoadPlan:
        values: dict[str, Any] = json.loads(text)
        closed = values.pop("closed_loop")
        return cls(**values, closed_loop=None if closed is None else ClosedLoopPlan(**closed))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """What happened to one request."""

    row: int
    arrival_s: float
    """As planned; in a closed loop the moment the user decided to send."""
    sent_s: float | None
    """None: it became due, but was never sent."""
    outcome: Outcome
    token_times_s: Sequence[float]
    num_events: int
    """Events that carried the tokens."""
    error: str | None = None
    num_prompt_tokens: int | None = None
    """As the server counts; None where it does not say."""
    num_cached_tokens: int | None = None
    is_counted: bool = True
    """The server said how many tokens it sent; otherwise events were counted."""

    def dumps(self) -> str:
        return json.dumps({**asdict(self), "outcome": self.outcome.name})

    @classmethod
    def loads(cls, text: str) -> RequestResult:
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "outcome": Outcome[values["outcome"]]})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """Where the run stands."""

    elapsed_s: float
    num_sent: int
    num_ended: int
    num_output_tokens: int

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> LoadProgress:
        return cls(**json.loads(text))
