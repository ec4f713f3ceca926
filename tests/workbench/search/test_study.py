"""A study that many processes share: no trial lost, none counted twice, none left running, whenever they die."""

from __future__ import annotations

import random
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState as OptunaState

from tests.workbench.search.fake_database import GRACE_S, FakeDatabase
from workbench.scenario.search import Search
from workbench.search import study as study_module
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.slots import MAX_LOST, OUTCOME
from workbench.search.study import SweepStudy
from workbench.search.trials import OpenTrial

pytestmark = pytest.mark.filterwarnings("ignore:.* is experimental")
SEARCH = Search.model_validate(
    {
        "trials": 6,
        "sampler": "random",
        "objective": "output_tokens_per_s",
        "space": {"max_num_seqs": {"low": 2, "high": 512}, "block_size": {"choices": [8, 16]}},
    }
)
DEFAULT = {"max_num_seqs": 128, "block_size": 16}


class Killed(BaseException):
    """The process ends here."""


def join(storage: FakeDatabase, *, sampler: str = "random") -> SweepStudy:
    """A process of the study."""
    search = SEARCH.model_copy(update={"sampler": sampler})
    return SweepStudy("s", search, seed=1, storage=storage, default_params=DEFAULT)


def complete(value: float = 1.0, **changes: Any) -> TrialOutcome:
    return TrialOutcome(state=TrialState.COMPLETE, objective=value, verdict="VALID", metrics={}, **changes)


def take(study: SweepStudy) -> OpenTrial:
    trial = study.take()
    assert trial is not None
    return trial


def states(study: SweepStudy) -> list[str]:
    return [trial.state.name for trial in study.optuna_study.get_trials(deepcopy=False)]


def finish_all(study: SweepStudy) -> list[int]:
    """Numbers of the trials that were evaluated."""
    study.recover()
    numbers = []
    while (trial := study.take()) is not None:
        numbers.append(trial.number)
        study.finish(trial, complete())
    study.recover()
    return numbers


def test_study_two_processes_never_take_the_same_trial_nor_more_than_asked() -> None:
    storage = FakeDatabase()
    one, other = join(storage), join(storage)
    one.open_for(3)
    taken = [take(one), take(other), take(one)]
    assert [trial.number for trial in taken] == [0, 1, 2]
    assert one.take() is None
    assert other.take() is None
    assert other.num_open == 3


def test_study_trial_of_a_dead_process_is_retried_with_its_parameters_and_a_link() -> None:
    storage = FakeDatabase()
    dead, alive = join(storage), join(storage)
    dead.open_for(2)
    lost = (take(dead), take(dead))[1]
    storage.now_s = GRACE_S + 1
    alive.recover()
    retried = [take(alive), take(alive)]
    assert [(trial.number, trial.params) for trial in retried] == [(0, DEFAULT), (1, lost.params)]
    stored = alive.optuna_study.get_trials(deepcopy=False)
    assert optuna.storages.RetryHeartbeatStaleTrialCallback.retry_history(stored[3]) == [1]
    for trial in retried:
        alive.finish(trial, complete())
    assert states(alive) == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    assert [(record.number, record.num_lost) for record in alive.records()] == [(0, 1), (1, 1)]


def test_study_process_taken_for_dead_that_comes_back_counts_for_nothing() -> None:
    storage = FakeDatabase()
    slow, other = join(storage), join(storage)
    slow.open_for(1)
    late = take(slow)
    storage.now_s = GRACE_S + 1
    other.recover()
    other.finish(take(other), complete(2.0))
    slow.finish(late, complete(1.0))
    assert [record.outcome.objective for record in slow.records()] == [2.0]


def test_study_process_that_died_after_the_outcome_is_completed_and_not_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = FakeDatabase()
    dead, alive = join(storage), join(storage)
    dead.open_for(1)
    monkeypatch.setattr(optuna.Study, "tell", lambda *_, **__: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        dead.finish(take(dead), complete(3.0, constraints={"ttft": -0.5}))
    monkeypatch.undo()
    assert finish_all(alive) == []
    (trial,) = alive.optuna_study.get_trials(deepcopy=False)
    assert (trial.state.name, trial.value, trial.constraints) == ("COMPLETE", 3.0, {"ttft": -0.5})


def test_study_process_that_died_between_failing_a_lost_trial_and_queueing_it_again_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = FakeDatabase()
    dead, reaper = join(storage), join(storage)
    dead.open_for(1)
    take(dead)
    storage.now_s = GRACE_S + 1
    monkeypatch.setattr(storage, "get_heartbeat_stale_trial_callback", lambda: lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        reaper.recover()
    monkeypatch.undo()
    assert states(reaper) == ["FAIL"]
    assert finish_all(join(storage)) == [0]


def test_study_lost_trial_queued_twice_by_a_race_is_run_once() -> None:
    storage = FakeDatabase()
    dead, alive = join(storage), join(storage)
    dead.open_for(1)
    take(dead)
    storage.now_s = GRACE_S + 1
    alive.recover()
    study_module.retry_lost_trial(alive.optuna_study, alive.optuna_study.get_trials()[0])
    assert states(alive) == ["FAIL", "WAITING", "WAITING"]
    assert finish_all(alive) == [0]
    assert states(alive) == ["FAIL", "COMPLETE", "FAIL"]
    assert len(alive.records()) == 1


def test_study_trials_queued_twice_by_two_leaders_are_not_run_beyond_the_number_asked() -> None:
    storage = FakeDatabase()
    one = join(storage)
    one.open_for(2)
    one.optuna_study.add_trial(optuna.create_trial(state=OptunaState.WAITING))
    assert finish_all(one) == [0, 1]
    one.open_for(3)
    assert finish_all(one) == [2]


def test_study_configuration_that_kills_every_process_is_given_up_as_failed() -> None:
    storage = FakeDatabase()
    study = join(storage)
    study.open_for(1)
    for _ in range(MAX_LOST):
        take(study)
        storage.now_s += GRACE_S + 1
        study.recover()
    assert study.take() is None
    assert study.num_open == 0
    (record,) = study.records()
    assert record.outcome.state is TrialState.FAILED
    assert record.outcome.reason == f"given up: the process that worked on it died {MAX_LOST} times"


def test_study_trial_given_back_waits_with_its_parameters() -> None:
    study = join(FakeDatabase())
    study.open_for(2)
    take(study)
    drawn = take(study)
    study.give_back(drawn)
    assert take(study).params == drawn.params


def test_study_paused_is_seen_by_every_process_until_it_is_opened_again() -> None:
    storage = FakeDatabase()
    lead, other = join(storage), join(storage)
    lead.open_for(2)
    lead.pause()
    assert other.is_paused
    lead.open_for(2)
    assert not other.is_paused


@pytest.mark.parametrize("sampler", ["random", "qmc"])
def test_study_draws_depend_on_the_trial_not_on_who_draws(sampler: str) -> None:
    alone, shared = join(FakeDatabase(), sampler=sampler), FakeDatabase()
    alone.open_for(6)
    many = [join(shared, sampler=sampler) for _ in range(3)]
    many[0].open_for(6)
    for study in (alone, many[0]):  # both have one finished trial, from which the samplers learn the space
        study.finish(take(study), complete())
    expected = [take(alone).params for _ in range(5)]
    assert [take(many[number % 3]).params for number in range(5)] == expected
    assert len({str(params) for params in expected}) == 5


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "nsga2", "qmc", "random", "grid"])
def test_study_every_sampler_draws_what_was_asked(sampler: str) -> None:
    study = join(FakeDatabase(), sampler=sampler)
    records = study.run(lambda number, params: complete(float(params["max_num_seqs"])), 14)
    assert [record.number for record in records] == list(range(14))
    assert len({str(record.params) for record in records}) >= 7


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_study_whatever_dies_whenever_every_trial_counts_once(seed: int) -> None:
    """Random processes take, finish, die in the middle, are taken for dead and come back."""
    chance = random.Random(seed)
    storage = FakeDatabase()
    studies = [join(storage) for _ in range(3)]
    num_trials = chance.randint(1, 6)
    studies[0].open_for(num_trials)
    held: list[tuple[SweepStudy, OpenTrial]] = []
    for _ in range(30):
        study = chance.choice(studies)
        match chance.choice(["take", "take", "finish", "die", "outcome", "beat", "time", "recover", "give back"]):
            case "take":
                if (trial := study.take()) is not None:
                    held.append((study, trial))
            case "finish" if held:
                owner, trial = held.pop(chance.randrange(len(held)))
                owner.finish(trial, complete(float(trial.number)))
            case "die" if held:
                held.pop(chance.randrange(len(held)))
            case "outcome" if held:  # written, and then the process dies
                _, trial = held.pop(chance.randrange(len(held)))
                record = study_module.TrialRecord(number=trial.number, params=trial.params, outcome=complete())
                try:
                    trial.handle.set_user_attr(OUTCOME, study_module.to_json(record))
                except UpdateFinishedTrialError:
                    continue
            case "beat" if held:
                storage.record_heartbeat(held[-1][1].handle._trial_id)
            case "time":
                storage.now_s += chance.choice([1.0, GRACE_S + 1])
            case "recover":
                study.recover()
            case "give back" if held:
                owner, trial = held.pop()
                owner.give_back(trial)
            case _:
                pass
    storage.now_s += GRACE_S + 1
    finish_all(studies[1])
    records = studies[2].records()
    assert [record.number for record in records] == list(range(num_trials))
    assert set(states(studies[0])) <= {"COMPLETE", "FAIL"}
    trials = studies[0].optuna_study.get_trials(deepcopy=False)
    assert sum(trial.state == OptunaState.COMPLETE for trial in trials) == num_trials
