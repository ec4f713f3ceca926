from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.selection import Gain, best_trial, plainest_winner
from workbench.search.study import TrialRecord

values = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
outcomes = st.builds(
    TrialOutcome,
    state=st.sampled_from(TrialState),
    objective=values,
    verdict=st.sampled_from([None, "VALID", "SUSPECT", "INVALID"]),
    constraints=st.dictionaries(st.sampled_from(["ttft", "tpot"]), st.floats(-1, 1), max_size=2),
)


@given(found=st.lists(outcomes, max_size=12), maximize=st.booleans())
def test_best_is_complete_valid_finite_and_keeps_every_limit(found: list[TrialOutcome], maximize: bool) -> None:
    records = [TrialRecord(number=i, params={}, outcome=outcome) for i, outcome in enumerate(found)]
    best = best_trial(records, maximize=maximize)
    able = [
        record
        for record in records
        if record.outcome.state is TrialState.COMPLETE
        and record.outcome.verdict == "VALID"
        and record.outcome.objective is not None
        and math.isfinite(record.outcome.objective)
        and all(shortfall <= 0 for shortfall in record.outcome.constraints.values())
    ]
    if not able:
        assert best is None
        return
    assert best is not None
    objectives = [record.outcome.objective or 0.0 for record in able]
    assert best.outcome.objective == (max if maximize else min)(objectives)


def test_best_of_equals_is_the_earlier_so_that_the_default_wins_ties() -> None:
    outcome = TrialOutcome(state=TrialState.COMPLETE, objective=1.0, verdict="VALID")
    records = [TrialRecord(number=i, params={}, outcome=outcome) for i in range(3)]
    assert best_trial(records, maximize=True) is records[0]


def trial(number: int, objective: float, **params: Any) -> TrialRecord:
    outcome = TrialOutcome(state=TrialState.COMPLETE, objective=objective, verdict="VALID")
    return TrialRecord(number=number, params=params, outcome=outcome)


DEFAULT = {"max_num_seqs": 256, "gpu_memory_utilization": 0.92}


def test_plainest_winner_is_the_default_within_the_error_of_the_model() -> None:
    records = [trial(0, 10.0, **DEFAULT), trial(1, 11.4, max_num_seqs=64, gpu_memory_utilization=0.8)]
    assert plainest_winner(records, maximize=True, error=0.15) is records[0]
    assert plainest_winner(records, maximize=True, error=0.1) is records[1]


def test_plainest_winner_keeps_only_values_that_it_needs() -> None:
    records = [
        trial(0, 10.0, **DEFAULT),
        trial(1, 20.0, max_num_seqs=64, gpu_memory_utilization=0.65),
        trial(2, 20.0, max_num_seqs=64, gpu_memory_utilization=0.92),
        trial(3, 15.0, max_num_seqs=256, gpu_memory_utilization=0.65),
    ]
    assert plainest_winner(records, maximize=True, error=0.15) is records[2]


def test_plainest_winner_beats_a_default_that_may_not_win() -> None:
    missed = replace(trial(0, 10.0, **DEFAULT).outcome, constraints={"ttft_p95": 0.2})
    records = [TrialRecord(number=0, params=DEFAULT, outcome=missed), trial(1, 10.1, max_num_seqs=64)]
    assert plainest_winner(records, maximize=True, error=0.15) is records[1]


def test_gain_of_a_prediction_holds_the_error_of_the_model() -> None:
    gain = Gain(value=0.5, low=0.4, high=0.6).with_error(0.25)
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.5, 0.12, 1.0))
    assert not Gain(value=0.2, low=0.15, high=0.25).with_error(0.2).is_significant
