"""Front, knee and hypervolume on points whose answers are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.pareto import find_front, hypervolume
from workbench.search.trials import TrialRecord

OBJECTIVES = {"output_tokens_per_s": True, "ttft_s.p95": False}


def trial(number: int, throughput: float, ttft: float | None, **changes: Any) -> TrialRecord:
    fields: dict[str, Any] = {"state": TrialState.COMPLETE, "verdict": "VALID", "objective": throughput, **changes}
    values = {"output_tokens_per_s": throughput, "ttft_s.p95": ttft}
    return TrialRecord(number=number, params={}, outcome=TrialOutcome(objectives=values, **fields))


TRIALS = [trial(0, 100, 1.0), trial(1, 200, 2.0), trial(2, 190, 1.1), trial(3, 150, 1.5), trial(4, 90, 3.0)]


def test_front_holds_what_no_other_beats_best_throughput_first() -> None:
    front = find_front(TRIALS, OBJECTIVES)
    assert front is not None
    assert [record.number for record in front.records] == [1, 2, 0]


def test_knee_is_nearest_to_the_best_of_both() -> None:
    front = find_front(TRIALS, OBJECTIVES)
    assert front is not None
    assert front.knee.number == 2


def test_front_leaves_out_what_may_not_win() -> None:
    unfit = [
        trial(5, 900, 0.1, verdict="SUSPECT"),
        trial(6, 900, 0.1, constraints={"ttft": 0.5}),
        trial(7, 900, None),
        trial(8, 900, 0.1, state=TrialState.FAILED),
        trial(9, 900, float("nan")),
    ]
    assert find_front(unfit, OBJECTIVES) is None
    front = find_front([*TRIALS, *unfit], OBJECTIVES)
    assert front is not None
    assert [record.number for record in front.records] == [1, 2, 0]


def test_front_keeps_the_earlier_of_equals() -> None:
    front = find_front([trial(0, 5, 1.0), trial(1, 5, 1.0)], OBJECTIVES)
    assert front is not None
    assert [record.number for record in front.records] == [0]
    assert front.hypervolume == 1.0


@pytest.mark.parametrize(
    ("points", "reference", "volume"),
    [
        ([(0.0,)], (2.0,), 2.0),
        ([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)], (4.0, 4.0), 6.0),
        ([(0.0, 0.0, 0.0)], (1.0, 2.0, 3.0), 6.0),
        ([(0.0, 0.5, 0.5), (0.5, 0.0, 0.0)], (1.0, 1.0, 1.0), 0.625),
        ([(5.0, 5.0)], (4.0, 4.0), 0.0),
    ],
)
def test_hypervolume_of_known_boxes(
    points: list[tuple[float, ...]], reference: tuple[float, ...], volume: float
) -> None:
    assert hypervolume(points, reference) == pytest.approx(volume)


VALUES = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 100))
OUTCOMES = st.builds(
    lambda throughput, ttft, **fields: TrialOutcome(
        objective=throughput, objectives={"output_tokens_per_s": throughput, "ttft_s.p95": ttft}, **fields
    ),
    throughput=VALUES,
    ttft=VALUES,
    state=st.sampled_from(TrialState),
    verdict=st.sampled_from(["VALID", "SUSPECT", "INVALID", None]),
    constraints=st.dictionaries(st.just("ttft"), st.floats(allow_nan=True), max_size=1),
)


@given(outcomes=st.lists(OUTCOMES, max_size=10))
def test_front_of_random_results_holds_only_fit_trials_and_beats_every_other_fit_one(
    outcomes: list[TrialOutcome],
) -> None:
    fit = {
        number: (-float(outcome.objectives["output_tokens_per_s"] or 0), float(outcome.objectives["ttft_s.p95"] or 0))
        for number, outcome in enumerate(outcomes)
        if outcome.state is TrialState.COMPLETE
        and outcome.verdict == "VALID"
        and outcome.objectives is not None
        and all(value is not None and math.isfinite(value) for value in outcome.objectives.values())
        and all(value <= 0 for value in outcome.constraints.values())
    }
    records = [TrialRecord(number=number, params={}, outcome=outcome) for number, outcome in enumerate(outcomes)]
    front = find_front(records, OBJECTIVES)
    if not fit:
        assert front is None
        return
    assert front is not None
    on_front = {record.number for record in front.records}
    assert on_front <= fit.keys()
    assert front.knee.number in on_front
    assert 0 <= front.hypervolume <= 1
    for point in fit.values():
        assert any(all(a <= b for a, b in zip(fit[number], point, strict=True)) for number in on_front)
