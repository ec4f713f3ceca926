"""What is known of a trial before it runs: it cannot start, cannot differ from another, or has something to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.errors import ConfigError, ModelLoadError
from workbench.loadgen.embedded import engine_facts
from workbench.loadgen.fleet.target import FleetTarget
from workbench.loadgen.simulated import SimulatedTarget
from workbench.scenario import Scenario, ScenarioError
from workbench.scenario.search import RATE_OBJECTIVES
from workbench.search.candidates import Candidate, LoadShape, candidates
from workbench.search.equivalence import find_duplicate
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.space import distributions_of, in_space
from workbench.search.trials import TrialRecord
from workbench.services.describe import limits_of
from workbench.services.rate_objective import rate_to_beat
from workbench.services.rate_trial import RateHints
from workbench.services.shared_study import default_params, search_of
from workbench.services.targets import build_target, check_rules, check_target
from workbench.workload import generate_workload
from workbench.workload.account import ImportAccount
from workbench.workload.generate import check_fit

_STEP_SIZES = ("max_num_seqs", "max_num_batched_tokens")
_HALVINGS = 5


def settle(scenario: Scenario, params: Mapping[str, Any], finished: Sequence[TrialRecord]) -> TrialOutcome | None:
    """The outcome where no run is needed: INFEASIBLE by arithmetic, or that of a trial it cannot differ from.

    The embedded engine measures its memory when it starts, so only rules that need no device are checked there, and
    its runs do not repeat exactly.
    """
    try:
        check_rules(scenario, params)
        if scenario.target.kind != "simulated":
            return None
        target = build_target(scenario, params)
        assert isinstance(target, (SimulatedTarget, FleetTarget))
        if scenario.workload.over_long in (None, "fail"):
            check_fit(list(scenario.workload.classes), target.resolved.max_model_len)
    except (ConfigError, ScenarioError) as error:
        return TrialOutcome(state=TrialState.INFEASIBLE, reason=str(error), duration_s=0.0)
    except ModelLoadError:
        return None  # a failure, which is the run's to report
    engine = {**engine_facts(target.resolved), **target.device_facts}
    found = find_duplicate(engine, finished, shares_prefixes=may_share_prefixes(scenario))
    if found is None:
        return None
    return as_duplicate(found.record, found.sentence, engine)


def as_duplicate(record: TrialRecord, sentence: str, engine: Mapping[str, Any]) -> TrialOutcome:
    """The outcome of a finished trial, taken over; it cannot win, as that trial can."""
    verdict = "SUSPECT" if record.outcome.verdict == "VALID" else record.outcome.verdict
    return replace(
        record.outcome,
        reason=sentence,
        verdict=verdict,
        duplicate_of=record.number,
        engine=dict(engine),
        run_path=None,
        duration_s=0.0,
    )


def marked_if_equal(scenario: Scenario, outcome: TrialOutcome, finished: Sequence[TrialRecord]) -> TrialOutcome:
    """A run that made the decisions of an earlier one, at equal cost, is its duplicate: the earlier one may win."""
    if scenario.target.kind != "simulated" or outcome.fingerprint is None or outcome.verdict != "VALID":
        return outcome
    for record in finished:
        other = record.outcome
        is_same = (other.fingerprint, other.objective, other.verdict) == (
            outcome.fingerprint,
            outcome.objective,
            "VALID",
        )
        if is_same and other.rate is None:
            reason = f"duplicate of trial {record.number}: identical scheduling decisions and objective"
            return replace(outcome, verdict="SUSPECT", reason=reason, duplicate_of=record.number)
    return outcome


def marked_if_fewer(outcome: TrialOutcome, finished: Sequence[TrialRecord]) -> TrialOutcome:
    """Mark a run that left out requests which the default answered (a shorter window): it cannot win against it."""
    default = next((record.outcome for record in finished if record.number == 0), None)
    if outcome.requests is None or default is None or default.requests is None:
        return outcome
    here, there = ImportAccount(**outcome.requests), ImportAccount(**default.requests)
    if here.used_fraction >= there.used_fraction:
        return outcome
    reason = f"not comparable with the default, which leaves out fewer requests: {here.describe()}"
    verdict = "SUSPECT" if outcome.verdict == "VALID" else outcome.verdict
    return replace(outcome, verdict=verdict, reason="; ".join(filter(None, (reason, outcome.reason))))


def may_share_prefixes(scenario: Scenario) -> bool:
    """Prompts of this workload may have beginnings in common."""
    kinds = scenario.workload.classes
    return not kinds or any(kind.shared_prefix or kind.conversation or kind.file for kind in kinds)


def hints_for(
    scenario: Scenario, params: Mapping[str, Any], finished: Sequence[TrialRecord], *, resolves_ties: bool = False
) -> RateHints:
    """What saves probes: the best rate so far, to be beaten, or to begin at where a tie counts."""
    if scenario.search is None or scenario.search.objective not in RATE_OBJECTIVES:
        return RateHints()
    best = rate_to_beat(scenario, params, finished)
    return RateHints(start_per_s=best) if resolves_ties else RateHints(to_beat=best)


def first_candidates(scenario: Scenario, num_trials: int) -> list[Candidate]:
    """Configurations to try right after the default; those that could not start are left out."""
    search = search_of(scenario)
    default = default_params(scenario, search)
    try:
        found = candidates(_shape_of(scenario), default, 4 * num_trials)
    except (ConfigError, ModelLoadError, ScenarioError):
        return []  # the default does not start: trial 0 will say so
    distributions = distributions_of(search.space)
    able: list[Candidate] = []
    for each in found:
        point = _startable(scenario, in_space(each.params, distributions), distributions)
        if point is not None and point != default and all(point != other.params for other in able):
            able.append(replace(each, params=point))
    return able[: max(1, num_trials // 4)]


def _startable(
    scenario: Scenario, point: dict[str, Any] | None, distributions: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The point as it will be tried, its steps halved until it starts; None where it never does."""
    for _ in range(_HALVINGS):
        if point is None or _can_start(scenario, point):
            return point
        smaller = {name: value // 2 for name, value in point.items() if name in _STEP_SIZES}
        point = in_space({**point, **smaller}, distributions)
    return None


def _can_start(scenario: Scenario, params: Mapping[str, Any]) -> bool:
    if scenario.target.kind == "embedded":
        try:
            check_target(scenario, params)
        except (ConfigError, ScenarioError):
            return False
    return settle(scenario, params, ()) is None


def _shape_of(scenario: Scenario) -> LoadShape:
    workload = generate_workload(scenario, limits_of(scenario))
    total = workload.num_prompt_tokens + workload.max_output_tokens
    kv_tokens = None
    if scenario.target.kind == "simulated":
        target = build_target(scenario, {})
        assert isinstance(target, (SimulatedTarget, FleetTarget))
        kv_tokens = target.resolved.num_blocks * target.resolved.config.cache.block_size
    return LoadShape(
        mean_tokens=float(total.mean()),
        p95_tokens=float(np.percentile(total, 95)),
        mean_prompt_tokens=float(workload.num_prompt_tokens.mean()),
        kv_tokens=kv_tokens,
    )
