"""What evaluating a configuration came to. Absent is None, failed is a reason, infeasible a verdict; none is zero."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class TrialState(Enum):
    """Three ways not to have a result, told apart, and one to have one."""

    COMPLETE = "COMPLETE"
    INFEASIBLE = "INFEASIBLE"
    """Arithmetic says it cannot run; nothing was run."""
    FAILED = "FAILED"
    """It broke while running."""
    PRUNED = "PRUNED"
    """Stopped early by rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """One evaluated configuration."""

    state: TrialState
    reason: str | None = None
    """Why it is not COMPLETE, or why its verdict is not VALID."""
    failure_kind: str | None = None
    """Class of failure, for counting equal ones in a row."""
    objective: float | None = None
    """Value of the study's objective, in its own unit."""
    objectives: Mapping[str, float | None] | None = None
    """With several objectives: each by its name; `objective` is the first of them then."""
    constraints: Mapping[str, float] = field(default_factory=dict)
    """SLO limit -> required share of requests minus share that kept it; at most 0 when it holds."""
    limits: Sequence[Mapping[str, Any]] = ()
    """Each limit with its value and shares (`metrics.attainment.LimitResult.to_dict`)."""
    metrics: Mapping[str, Any] | None = None
    classes: Mapping[str, Any] | None = None
    verdict: str | None = None
    """VALID, SUSPECT or INVALID."""
    fingerprint: str | None = None
    """Of the scheduling decisions."""
    binding: Mapping[str, Any] | None = None
    """What limited admission: shares of busy steps by cause, with a verdict."""
    engine: Mapping[str, Any] | None = None
    """Resolved engine parameters."""
    rate: Mapping[str, Any] | None = None
    """With a sustainable rate as the objective: `passed`, `failed` and the probes."""
    peaks: Mapping[str, Any] | None = None
    """The most that its runs asked of the engine's limits (`metrics.peaks`)."""
    requests: Mapping[str, Any] | None = None
    """Rows of the load: read, used, skipped by reason (`workload.account`)."""
    duplicate_of: int | None = None
    """Number of the trial whose outcome this one took over, because they cannot differ."""
    run_path: str | None = None
    """Where the run's records were stored."""
    duration_s: float | None = None
    """Wall time of the evaluation."""

    @property
    def remarks(self) -> dict[str, str]:
        """`verdict` and `misses` in words, for people who look at the trials in optuna-dashboard."""
        head = self.state.value if self.state is not TrialState.COMPLETE else self.verdict or "not judged"
        found = {"verdict": f"{head}: {self.reason}" if self.reason else head}
        missed = [name for name, shortfall in self.constraints.items() if not shortfall <= 0]
        return found | ({"misses": ", ".join(missed)} if missed else {})

    @property
    def may_win(self) -> bool:
        """Only a complete, valid run with a finite objective and every constraint kept can be the best."""
        return (
            self.state is TrialState.COMPLETE
            and self.verdict == "VALID"
            and self.objective is not None
            and math.isfinite(self.objective)
            and all(value <= 0 for value in self.constraints.values())
        )
