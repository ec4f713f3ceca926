from __future__ import annotations

from typing import Any

from workbench.search.noop import find_identical_schedules
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.study import TrialRecord


def trial(number: int, fingerprint: str | None, **params: Any) -> TrialRecord:
    outcome = TrialOutcome(state=TrialState.COMPLETE, fingerprint=fingerprint)
    return TrialRecord(number=number, params=params, outcome=outcome)


def test_identical_schedules_name_the_parameter_that_changed_nothing() -> None:
    records = [
        trial(0, "aa", max_num_seqs=64, block_size=16),
        trial(1, "bb", max_num_seqs=8, block_size=16),
        trial(2, "aa", max_num_seqs=256, block_size=16),
    ]
    found = find_identical_schedules(records)
    assert len(found) == 1
    assert found[0].trials == (0, 2)
    assert found[0].unaffecting == {"max_num_seqs": (64, 256)}
    assert found[0].sentence == (
        "Trials 0, 2 made identical scheduling decisions: max_num_seqs (64 / 256) changed nothing."
    )


def test_identical_schedules_need_a_fingerprint() -> None:
    assert find_identical_schedules([trial(0, None, a=1), trial(1, None, a=2)]) == []


def test_identical_schedules_of_a_repeated_configuration_say_so() -> None:
    found = find_identical_schedules([trial(0, "aa", a=1), trial(1, "aa", a=1)])
    assert "the same configuration was run again" in found[0].sentence
