"""What repeats are evidence of: only valid ones count, and nothing unfit is confirmed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.search.confirmation import Confirmation, Confirmed, Repeat, conclude
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.trials import TrialRecord


def ran(objective: float | None, verdict: str = "VALID", **changes: object) -> Repeat:
    fields: dict[str, object] = {"state": TrialState.COMPLETE, "objective": objective, "verdict": verdict, **changes}
    return Repeat.of(TrialOutcome(**fields))  # type: ignore[arg-type]


def finalist(number: int, predicted: float, *repeats: Repeat) -> Confirmed:
    outcome = TrialOutcome(state=TrialState.COMPLETE, objective=predicted, verdict="VALID")
    return Confirmed(record=TrialRecord(number=number, params={}, outcome=outcome), repeats=repeats)


def concluded(*finalists: Confirmed) -> Confirmation:
    default = finalist(0, 50.0, ran(50.0), ran(51.0))
    return conclude("embedded", default, finalists, maximize=True)


def test_confirmation_counts_no_suspect_repeat_and_says_why() -> None:
    found = concluded(
        finalist(7, 100.0, ran(900.0, "SUSPECT", reason="window not stationary"), ran(60.0)),
        finalist(3, 90.0, ran(70.0), ran(71.0)),
    )
    assert found.winner is not None
    assert found.winner.number == 3
    first = found.to_dict()["finalists"][0]
    assert first["measured"] == [None, 60.0]
    assert first["reasons"] == ["SUSPECT: window not stationary", None]
    assert first["error"] == pytest.approx(100 / 60 - 1)


def test_confirmation_without_a_valid_repeat_has_no_winner_and_names_the_reason() -> None:
    late = ran(99.0, "INVALID", reason="The load generator was late: p99 12 ms. Lower the rate")
    found = concluded(finalist(7, 100.0, late, late), finalist(3, 90.0, late, late))
    assert (found.winner, found.gain, found.result, found.repeats) == (None, None, None, {})
    assert found.doubt == (
        "trial 7 has no valid repeat (INVALID: The load generator was late: p99 12 ms); nor 1 more, see the report"
    )


def test_confirmation_of_repeats_that_miss_the_slo_together_has_no_winner_but_states_what_was_gained() -> None:
    missing = finalist(7, 100.0, ran(100.0, constraints={"ttft": 0.02}), ran(102.0, constraints={"ttft": -0.01}))
    found = concluded(missing)
    assert found.winner is None
    assert found.doubt == "trial 7 misses ttft in the repeats"
    assert found.gain is not None
    assert found.gain.value == pytest.approx(1.0, abs=0.01)


def test_confirmation_lets_one_repeat_at_the_edge_be_made_good_by_the_others() -> None:
    found = concluded(
        finalist(7, 100.0, ran(100.0, constraints={"ttft": 0.01}), ran(99.0, constraints={"ttft": -0.01}))
    )
    assert found.winner is not None


def test_confirmation_without_a_default_measures_the_finalists_alone() -> None:
    found = conclude("embedded", None, [finalist(3, 90.0, ran(80.0), ran(81.0))], maximize=True)
    assert found.winner is not None
    assert (found.gain, found.repeats) == (None, {})
    assert found.result is not None


NUMBERS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.just(0.0))
OUTCOMES = st.builds(
    TrialOutcome,
    state=st.sampled_from(TrialState),
    objective=NUMBERS,
    verdict=st.sampled_from(["VALID", "SUSPECT", "INVALID", None]),
    constraints=st.dictionaries(st.sampled_from(["ttft", "tpot"]), st.floats(allow_nan=True), max_size=2),
)


@given(rounds=st.lists(st.tuples(OUTCOMES, OUTCOMES), max_size=5), maximize=st.booleans())
def test_confirmation_of_random_repeats_confirms_only_what_has_valid_finite_ones_within_the_slo(
    rounds: list[tuple[TrialOutcome, TrialOutcome]], maximize: bool
) -> None:
    finalists = [
        finalist(number, 10.0, *(Repeat.of(outcome) for outcome in pair)) for number, pair in enumerate(rounds, 1)
    ]
    found = conclude("embedded", finalist(0, 5.0, ran(5.0), ran(5.5)), finalists, maximize=maximize)
    means: dict[int, float] = {}
    for number, pair in enumerate(rounds, 1):
        valid = [
            outcome
            for outcome in pair
            if outcome.state is TrialState.COMPLETE
            and outcome.verdict == "VALID"
            and outcome.objective is not None
            and math.isfinite(outcome.objective)
        ]
        names = {name for outcome in valid for name in outcome.constraints}
        kept = all(sum(o.constraints[name] for o in valid if name in o.constraints) <= 0 for name in names)
        if valid and kept:
            means[number] = sum(o.objective or 0.0 for o in valid) / len(valid)
    if not means:
        assert found.winner is None
        assert found.result is None
        assert (found.doubt is None) == (not finalists)
        return
    assert found.winner is not None
    best = max(means.values()) if maximize else min(means.values())
    assert means[found.winner.number] == pytest.approx(best)
