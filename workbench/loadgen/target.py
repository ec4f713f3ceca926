"""What every load target offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from workbench.metrics.records import RunRecord, StopRule
from workbench.workload.records import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands."""

    elapsed_s: float
    """On the run's clock."""
    num_requests: int
    num_sent: int
    num_ended: int
    """Completed, failed or refused."""
    num_output_tokens: int


ProgressCallback = Callable[[Progress], None]


class Target(Protocol):
    """Takes a workload and reports what happened; the same records whatever stands behind it."""

    def run(
        self,
        workload: Workload,
        *,
        deadline_s: float | None = None,
        on_progress: ProgressCallback | None = None,
        stop: StopRule | None = None,
    ) -> RunRecord:
        """Issue the requests and wait for their ends, at most `deadline_s` of the run's clock, or until `stop` says so.

        Raises `workbench.loadgen.errors.RunFailed`, with the partial record, when the target breaks.
        """
        ...
