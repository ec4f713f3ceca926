"""What a sweep came to: its trials, its winner, one sentence that answers "so what?"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.report.quantities import label, shown
from workbench.scenario import Scenario, scenario_to_dict
from workbench.scenario.search import Search
from workbench.search.confirmation import Confirmation
from workbench.search.pareto import Front, find_front
from workbench.search.selection import Gain, best_trial
from workbench.search.trials import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """A sweep, whole or as far as it came."""

    scenario: Scenario
    search: Search
    directory: Path
    records: Sequence[TrialRecord]
    best: TrialRecord | None
    gain: Gain | None
    seed: int
    """Of the search."""
    num_trials: int
    """Asked for."""
    repeats: Mapping[str, Sequence[float]]
    """`default` and `best` -> objective of each confirming run."""
    confirmation: Confirmation | None = None
    stopped: str | None = None
    """Why it ended early."""
    is_cut_short: bool = False
    """It ended early for another reason than the budget that was asked for."""

    @property
    def front(self) -> Front | None:
        """With several objectives, and where a trial may win."""
        return find_front(self.records, self.search.objectives) if self.search.is_pareto else None

    @property
    def default(self) -> TrialRecord | None:
        return next((record for record in self.records if record.number == 0), None)

    @property
    def requests(self) -> Mapping[str, Any] | None:
        """Rows of the load that the winner answered: read, used, skipped by reason."""
        answered = [
            record.outcome.requests for record in (self.best, self.default, *self.records) if record is not None
        ]
        return next((each for each in answered if each is not None), None)

    def to_json(self) -> dict[str, Any]:
        """The object of `workbench sweep --json`, and of `study.json`."""
        default, best = self.default, self.best
        return {
            "study": self.directory.name,
            "scenario": self.scenario.name,
            "objective": self.search.objective,
            "direction": "maximize" if self.search.maximize else "minimize",
            "seed": self.seed,
            "num_trials": self.num_trials,
            "requests": self.requests,
            "default": None
            if default is None
            else {"params": default.params, "metrics": default.outcome.metrics, "verdict": default.outcome.verdict},
            "best": None
            if best is None
            else {"number": best.number, "params": best.params, "metrics": best.outcome.metrics},
            "gain": None
            if self.gain is None
            else {"value": self.gain.value, "low": self.gain.low, "high": self.gain.high},
            "conclusion": conclusion_of(self),
            "trials": [trial_json(record) for record in self.records],
            "pareto": None if self.front is None else self.front.to_dict(),
            "repeats": {name: list(values) for name, values in self.repeats.items()},
            "confirmation": None if self.confirmation is None else self.confirmation.to_dict(),
            "slo": None if self.scenario.slo is None else self.scenario.slo.model_dump(exclude_none=True),
            "space": {name: dimension.model_dump(exclude_none=True) for name, dimension in self.search.space.items()},
            "stopped": self.stopped,
            "scenario_resolved": scenario_to_dict(self.scenario),
        }


def trial_json(record: TrialRecord) -> dict[str, Any]:
    outcome = record.outcome
    return {
        "number": record.number,
        "state": outcome.state.value,
        "params": dict(record.params),
        "metrics": outcome.metrics,
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "objective": outcome.objective,
        "objectives": outcome.objectives,
        "rate": outcome.rate,
        "duplicate_of": outcome.duplicate_of,
        "constraints": dict(outcome.constraints),
        "run": outcome.run_path,
        "duration_s": outcome.duration_s,
        "num_lost": record.num_lost,
        "decision_fingerprint": outcome.fingerprint,
        "binding": outcome.binding,
    }


def conclusion_of(result: SweepResult) -> str:
    """One sentence that answers "so what?"."""
    if result.best is None:
        complete = [r for r in result.records if r.outcome.metrics is not None]
        if not complete:
            return "No configuration gave a result: see the reasons of the trials."
        if any(r.outcome.verdict == "VALID" for r in complete):
            return "No configuration tried keeps the SLO at this load: lower the rate, relax the SLO or add capacity."
        return "No run can be trusted: see the verdicts of the trials."
    if result.front is not None:
        return _front_in_words(result.front)
    if result.confirmation is not None and result.confirmation.doubt is not None:
        return _doubt_in_words(result, result.best, result.confirmation)
    if result.best.number == 0:
        return "The default configuration was not beaten: no significant gain over the default."
    name = result.search.objective
    default = None if result.default is None else result.default.outcome.objective
    if default == 0 and result.search.maximize:
        return f"The default configuration reached 0 in {name}, the best {result.best.outcome.objective:.4g}."
    if default is None:
        return "The default configuration gave no result to compare the best one with."
    if result.gain is None:
        return (
            f"Trial {result.best.number} is the best of the search with {result.best.outcome.objective:.4g} in {name} "
            f"(default: {default:.4g}). That is not confirmed: a gain rests on two repeats of both that count."
        )
    span = f"{result.gain.value:+.1%} (95% interval {result.gain.low:+.1%} to {result.gain.high:+.1%})"
    if not result.gain.is_significant:
        return f"No significant gain over the default: {span} in {result.search.objective}."
    return f"Gain over the default: {span} in {result.search.objective}."


def _doubt_in_words(result: SweepResult, best: TrialRecord, confirmation: Confirmation) -> str:
    gain = result.gain
    more = "" if gain is None else f" ({gain.value:+.1%} over the default there, {gain.low:+.1%} to {gain.high:+.1%})"
    return (
        f"Trial {best.number} is the best of the search in {result.search.objective}{more}, but the repeats "
        f"({confirmation.target}) do not confirm it: {confirmation.doubt}."
    )


def _front_in_words(front: Front) -> str:
    values = front.knee.outcome.objectives or {}
    knee = ", ".join(f"{label(name)} {shown(name, value)}" for name, value in values.items() if value is not None)
    one = len(front.records) == 1
    count = "1 configuration is" if one else f"{len(front.records)} configurations are"
    return (
        f"{count} beaten by no other in {', '.join(label(name) for name in values)} at once. The knee is trial "
        f"{front.knee.number} ({knee}). The front dominates {front.hypervolume:.0%} of what was tried (hypervolume)."
    )


def winner_of(records: Sequence[TrialRecord], search: Search) -> TrialRecord | None:
    """The best trial; with several objectives the knee of the front."""
    if not search.is_pareto:
        return best_trial(records, maximize=search.maximize)
    front = find_front(records, search.objectives)
    return None if front is None else front.knee
