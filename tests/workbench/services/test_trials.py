"""Trials: what breaks one is its result, never the sweep's end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest

from workbench.scenario import Scenario, parse_scenario
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.storage import open_journal
from workbench.search.study import SweepStopped, SweepStudy
from workbench.services.sweep import run_sweep
from workbench.services.trials import TrialWorker, evaluate_trial
from workbench.store.errors import StoreError

TEXT = """
name: trials
model: tiny
engine: {max_model_len: 256, num_blocks: 64, threads: 1}
workload:
  num_requests: 6
  arrivals: {kind: all_at_once}
  classes:
    - {name: a, input_tokens: {kind: constant, value: 20}, output_tokens: {kind: constant, value: 4}}
search:
  confirm: {repeats: 1}
  trials: 4
  objective: output_tokens_per_s
  space:
    max_num_seqs: {low: 2, high: 8}
"""


def scenario(*overrides: str) -> Scenario:
    return parse_scenario(TEXT, source="trials.yaml", overrides=list(overrides), directory=Path())


def test_trial_over_the_budget_rule_is_infeasible_and_nothing_ran() -> None:
    outcome = evaluate_trial(scenario(), {"max_num_seqs": 8, "max_num_batched_tokens": 4}, None, None)
    assert outcome.state is TrialState.INFEASIBLE
    assert outcome.metrics is None
    assert "must be at least max_num_seqs" in str(outcome.reason)
    assert not outcome.may_win


def test_trial_whose_window_is_too_short_for_the_prompts_is_infeasible() -> None:
    outcome = evaluate_trial(scenario(), {"max_model_len": 16}, None, None)
    assert outcome.state is TrialState.INFEASIBLE


def test_trial_that_cannot_load_its_model_failed_with_the_reason(tmp_path: Path) -> None:
    outcome = evaluate_trial(scenario(f"model={tmp_path / 'nowhere'}"), {}, None, None)
    assert outcome.state is TrialState.FAILED
    assert "nowhere" in str(outcome.reason)


def test_trial_with_an_exception_in_the_forward_pass_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.worker.model_runner import ModelRunner

    def explode(self: object, batch: object) -> None:
        raise RuntimeError("matmul of incompatible shapes")

    monkeypatch.setattr(ModelRunner, "compute_logits", explode)
    outcome = evaluate_trial(scenario(), {}, None, None)
    assert outcome.state is TrialState.FAILED
    assert outcome.failure_kind == "RuntimeError"
    assert "incompatible shapes" in str(outcome.reason)


def test_worker_killed_in_the_middle_is_a_failed_trial_and_the_next_one_runs() -> None:
    with TrialWorker(scenario()) as worker:
        assert worker.evaluate({"max_num_seqs": 4}).state is TrialState.COMPLETE
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        outcome = worker.evaluate({"max_num_seqs": 4})
        assert outcome.state is TrialState.FAILED
        assert outcome.failure_kind == "worker_died"
        assert "SIGKILL" in str(outcome.reason)
        assert worker.evaluate({"max_num_seqs": 4}).state is TrialState.COMPLETE


def make_study(path: Path, *, trials: int = 8) -> SweepStudy:
    search = scenario().search
    assert search is not None
    return SweepStudy(
        "s", search, seed=1, storage=open_journal(path / "journal.log"), default_params={"max_num_seqs": 128}
    )


def complete(value: float, **changes: Any) -> TrialOutcome:
    return TrialOutcome(state=TrialState.COMPLETE, objective=value, verdict="VALID", metrics={}, **changes)


def test_study_trial_0_is_the_default_even_outside_the_space(tmp_path: Path) -> None:
    records = make_study(tmp_path).run(lambda number, params: complete(float(params["max_num_seqs"])), 3)
    assert records[0].params == {"max_num_seqs": 128}
    assert all(2 <= record.params["max_num_seqs"] <= 8 for record in records[1:])


def test_study_stops_after_five_equal_failures_in_a_row(tmp_path: Path) -> None:
    outcome = TrialOutcome(state=TrialState.FAILED, reason="no such device", failure_kind="OSError")
    study = make_study(tmp_path)
    with pytest.raises(SweepStopped, match=r"5 trials in a row failed in the same way \(no such device"):
        study.run(lambda number, params: outcome, 20)
    assert len(study.records()) == 5


def test_study_different_failures_do_not_stop_it(tmp_path: Path) -> None:
    def evaluate(number: int, params: object) -> TrialOutcome:
        return TrialOutcome(state=TrialState.FAILED, reason="?", failure_kind=f"kind-{number % 2}")

    assert len(make_study(tmp_path).run(evaluate, 9)) == 9


def test_study_interrupted_trial_is_run_again_under_its_own_number(tmp_path: Path) -> None:
    def evaluate(number: int, params: object) -> TrialOutcome:
        if number == 2:
            raise KeyboardInterrupt
        return complete(1.0)

    with pytest.raises(KeyboardInterrupt):
        make_study(tmp_path).run(evaluate, 4)
    resumed = make_study(tmp_path)
    assert [record.number for record in resumed.records()] == [0, 1]
    tried = []

    def again(number: int, params: object) -> TrialOutcome:
        tried.append(number)
        return complete(1.0)

    assert [record.number for record in resumed.run(again, 4)] == [0, 1, 2, 3]
    assert tried == [2, 3]


def test_study_trial_killed_while_its_parameters_were_drawn_keeps_its_number(tmp_path: Path) -> None:
    killed = make_study(tmp_path)
    assert killed.optuna_study.ask().number == 0  # and nothing drawn yet
    records = make_study(tmp_path).run(lambda number, params: complete(1.0), 3)
    assert [record.number for record in records] == [0, 1, 2]
    assert records[0].params == {"max_num_seqs": 128}


def test_study_trial_killed_after_its_outcome_was_written_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = make_study(tmp_path)
    monkeypatch.setattr(optuna.Study, "tell", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        killed.run(lambda number, params: complete(5.0, constraints={"ttft": -0.1}), 1)
    monkeypatch.undo()
    resumed = make_study(tmp_path)
    assert [(record.number, record.outcome.objective) for record in resumed.records()] == [(0, 5.0)]


def test_study_goes_on_after_five_failures_were_mended(tmp_path: Path) -> None:
    failed = TrialOutcome(state=TrialState.FAILED, reason="disk", failure_kind="OSError")
    with pytest.raises(SweepStopped):
        make_study(tmp_path).run(lambda number, params: failed, 8)
    records = make_study(tmp_path).run(lambda number, params: complete(1.0), 8)
    assert [record.outcome.state for record in records[5:]] == [TrialState.COMPLETE] * 3


def test_study_resumed_draws_other_points_than_it_had(tmp_path: Path) -> None:
    search = scenario("search.space.gpu_memory_utilization={low: 0.1, high: 0.9}").search
    assert search is not None
    default = {"max_num_seqs": 128, "gpu_memory_utilization": 0.9}

    def go_on(trials: int) -> list[float]:
        storage = open_journal(tmp_path / "journal.log")
        study = SweepStudy("s", search, seed=1, storage=storage, default_params=default)
        records = study.run(lambda number, params: complete(1.0), trials)
        return [record.params["gpu_memory_utilization"] for record in records]

    go_on(3)
    assert len(set(go_on(6))) == 6


def test_storage_forgets_the_half_line_and_the_lock_of_a_killed_writer(tmp_path: Path) -> None:
    make_study(tmp_path).run(lambda number, params: complete(1.0), 2)
    journal = tmp_path / "journal.log"
    with journal.open("a") as stream:
        stream.write('{"op_code": 4, "worker')
    (tmp_path / "journal.log.lock").symlink_to(journal)
    assert len(make_study(tmp_path).run(lambda number, params: complete(1.0), 4)) == 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [*lines[:2], "no json", *lines[3:]], "cannot be read"),
        (lambda lines: [*lines, '{"op_code": 99, "worker_id": "x"}'], "cannot be read"),
        (lambda lines: [], "lacks 2 trials"),
        (lambda lines: lines[:3], "lacks 2 trials"),
    ],
)
def test_sweep_of_a_damaged_journal_is_refused_and_deletes_nothing(damage: Any, message: str, tmp_path: Path) -> None:
    study = run_sweep(scenario(), out=tmp_path, trials=2).directory
    journal = study / "journal.log"
    journal.write_text("".join(f"{line}\n" for line in damage(journal.read_text().splitlines())))
    with pytest.raises(StoreError, match=message):
        run_sweep(scenario(), out=tmp_path, trials=3, resume=True)
    assert (study / "trial-0001" / "run.json").is_file()


def test_sweep_resumed_runs_the_trial_again_whose_run_was_stored_but_not_told(tmp_path: Path) -> None:
    study = run_sweep(scenario(), out=tmp_path, trials=1).directory
    (study / "trial-0001").mkdir()
    (study / ".writing-trial-0002-1").mkdir()
    resumed = run_sweep(scenario(), out=tmp_path, trials=2, resume=True)
    assert [record.number for record in resumed.records] == [0, 1]
    assert (study / "trial-0001" / "run.json").is_file()
    assert not (study / ".writing-trial-0002-1").exists()


def test_sweep_writes_the_study_after_every_trial_and_resumes(tmp_path: Path) -> None:
    first = run_sweep(scenario(), out=tmp_path, trials=2)
    assert [record.number for record in first.records] == [0, 1]
    resumed = run_sweep(scenario(), out=tmp_path, trials=3, resume=True)
    assert resumed.directory == first.directory
    assert [record.number for record in resumed.records] == [0, 1, 2]
    assert resumed.records[:2] == first.records
    other = run_sweep(scenario(), out=tmp_path, trials=1)
    assert other.directory != first.directory
    assert (tmp_path / first.directory.name / "trial-0000" / "run.json").is_file()
