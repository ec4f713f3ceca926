from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.selection import best_trial
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
