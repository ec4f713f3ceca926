"""What a sweep came to: its trials, its winner, one sentence that answers "so what?"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.catalog import find_gpu
from workbench.records.basis import Basis
from workbench.report.quantities import label, shown
from workbench.scenario import Scenario, scenario_to_dict
from workbench.scenario.search import Search
from workbench.search.confirmation import Confirmation
from workbench.search.pareto import Front, find_front
from workbench.search.selection import Gain, best_trial, gain_over, plainest_winner
from workbench.search.trials import TrialRecord
from workbench.services.export import serve_line


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
    def basis(self) -> Basis:
        return find_basis(self.scenario, self.records, self.best)

    @property
    def model_error(self) -> float | None:
        """Of a study on a simulated device."""
        return self.basis.error_p90 if self.scenario.target.kind == "simulated" else None

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
            "basis": self.basis.to_dict(),
            "serve_command": None
            if best is None
            else serve_line(scenario_to_dict(self.scenario), best.params, best.outcome.engine or {}),
            "limits": [] if best is None else [dict(limit) for limit in best.outcome.limits],
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
        "limits": [dict(limit) for limit in outcome.limits],
        "run": outcome.run_path,
        "duration_s": outcome.duration_s,
        "num_lost": record.num_lost,
        "decision_fingerprint": outcome.fingerprint,
        "binding": outcome.binding,
    }


def conclusion_of(result: SweepResult) -> str:
    """Answer the question first: does anything keep the limits, does the default, and what is gained."""
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
        return _default_in_words(result)
    return f"{_limits_in_words(result, result.best)}{_gain_in_words(result, result.best)}"


def _default_in_words(result: SweepResult) -> str:
    best = best_trial(result.records, maximize=result.search.maximize)
    default = result.default
    if best is None or default is None or best.number == 0 or not result.model_error:
        return "Keep the default configuration: nothing that was tried beats it, no significant gain."
    gain = gain_over(default, best, maximize=result.search.maximize)
    value = "" if gain is None else f", {gain.value:+.1%} in {result.search.objective}"
    return (
        f"Keep the default configuration: the best of the search (trial {best.number}{value}) is within the model's "
        f"error of {result.model_error:.0%}, no significant gain."
    )


def _limits_in_words(result: SweepResult, best: TrialRecord) -> str:
    """Whether the winner keeps what the default misses; empty where both keep every limit."""
    default = result.default
    missed = [] if default is None else [each for each in default.outcome.limits if _is_missed(each)]
    if missed:
        texts = [f"{each['name']} ({_latency(each['value_s'])}, limit {_latency(each['limit_s'])})" for each in missed]
        return f"The default misses {', '.join(texts)}; trial {best.number} keeps it. "
    if default is not None and default.outcome.objective is None and default.outcome.rate is not None:
        return f"The default keeps the limits at no rate that was tried; trial {best.number} does. "
    return ""


def _is_missed(limit: Mapping[str, Any]) -> bool:
    return limit["share_reached"] is None or limit["share_reached"] < limit["share_required"]


def _latency(value_s: float | None) -> str:
    return "none completed" if value_s is None else shown("ttft_s.p95", value_s)


def _gain_in_words(result: SweepResult, best: TrialRecord) -> str:
    name, gain = result.search.objective, result.gain
    default = None if result.default is None else result.default.outcome.objective
    if default is None:
        return f"It reaches {best.outcome.objective:.4g} in {name}."
    if default == 0 and result.search.maximize:
        return f"The default reached 0 in {name}, the best {best.outcome.objective:.4g}."
    if gain is None:
        return (
            f"Trial {best.number} is the best of the search with {best.outcome.objective:.4g} in {name} "
            f"(default: {default:.4g}). That is not confirmed: a gain rests on two repeats of both that count."
        )
    simulated = result.model_error is not None
    kind = "95% interval" if not simulated else "the model's error included"
    span = f"{gain.value:+.1%} ({gain.low:+.1%} to {gain.high:+.1%}, {kind}) in {name}"
    if not gain.is_significant:
        return f"No significant gain over the default: {span}."
    return f"{'Predicted gain' if simulated else 'Gain'} over the default: {span}."


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


def winner_of(records: Sequence[TrialRecord], search: Search, model_error: float | None) -> TrialRecord | None:
    """The best trial; of predictions with a `model_error` the plainest of equals; with several objectives the knee of
    the front."""
    if search.is_pareto:
        front = find_front(records, search.objectives)
        return None if front is None else front.knee
    if model_error is None:
        return best_trial(records, maximize=search.maximize)
    return plainest_winner(records, maximize=search.maximize, error=model_error)


def find_basis(scenario: Scenario, records: Sequence[TrialRecord], best: TrialRecord | None) -> Basis:
    """What the study rests on, by the winner's run or the first that has one."""
    engines = [each.outcome.engine for each in ([] if best is None else [best]) + list(records)]
    engine = next((each for each in engines if each and each.get("profile")), {})
    target = scenario.target
    basis = Basis.of(target.kind, scenario.model, engine)
    if basis.gpu is None and target.kind == "simulated" and target.gpu is not None:
        basis = replace(basis, gpu=find_gpu(target.gpu).id, tp=target.tensor_parallel_size)
    return basis
