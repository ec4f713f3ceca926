"""Processes that share a study, killed and stopped in the middle of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest

from workbench.scenario import Scenario, ScenarioError, parse_scenario
from workbench.search.study import SweepStudy
from workbench.services import sweep as sweep_module
from workbench.services.open_study import StudyPlace, open_study
from workbench.services.sweep import run_sweep
from workbench.services.work import WorkEvents, work
from workbench.store.runs import load_run

TEXT = """
name: shared
model: Qwen/Qwen2.5-7B-Instruct
target: {kind: simulated, gpu: a100-80g-sxm}
engine: {max_model_len: 1024}
workload:
  num_requests: 40
  arrivals: {kind: closed_loop, concurrency: 16}
  classes:
    - {name: a, input_tokens: {kind: constant, value: 100}, output_tokens: {kind: constant, value: 20}}
search:
  confirm: {repeats: 1}
  trials: 18
  sampler: random
  objective: output_tokens_per_s
  space:
    max_num_seqs: {low: 2, high: 64, log: true}
"""
HEARTBEAT_S, GRACE_S = 1, 2


def scenario(*overrides: str) -> Scenario:
    return parse_scenario(TEXT, source="shared.yaml", overrides=list(overrides), directory=Path())


def start_worker(study: str, url: str) -> subprocess.Popen[bytes]:
    """A worker in a process of its own, as on another machine."""
    code = (
        "import sys; from workbench.services.work import work; "
        f"work(sys.argv[1], sys.argv[2], heartbeat_s={HEARTBEAT_S}, grace_s={GRACE_S})"
    )
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, study, url])


@contextmanager
def led_study(url: str, out: Path, trials: int) -> Iterator[tuple[str, SweepStudy]]:
    """A study whose trials are queued, and its leader's view of it."""
    with open_study(scenario(), 1, StudyPlace(out=out, storage=url)) as opened:
        opened.study.open_for(trials)
        yield opened.study.name, opened.study


def wait_for(study: SweepStudy, num_finished: int, processes: list[subprocess.Popen[bytes]]) -> None:
    """Until so many trials are finished and one is being run."""
    while True:
        running = study.optuna_study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        if study.num_open == 0 or (len(study.records()) >= num_finished and running):
            return
        assert any(process.poll() is None for process in processes), "all workers have ended"
        time.sleep(0.01)


def kill_every_few_trials(url: str, out: Path, *, trials: int, every: int) -> int:
    """A whole study on two workers of which one is killed after every few trials; the last ones may finish."""
    num_killed = 0
    with led_study(url, out, trials) as (name, study):
        workers = [start_worker(name, url) for _ in range(2)]
        try:
            for num_finished in range(every, trials - every, every):
                wait_for(study, num_finished, workers)
                victim = workers.pop(0)
                victim.kill()
                num_killed += victim.wait() == -signal.SIGKILL
                workers.append(start_worker(name, url))
            assert [worker.wait(timeout=60) for worker in workers] == [0, 0]
            assert_every_trial_counts_once(study, trials)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    return num_killed


def assert_every_trial_counts_once(study: SweepStudy, trials: int) -> None:
    records = study.records()
    assert [record.number for record in records] == list(range(trials))
    assert {record.outcome.state.value for record in records} == {"COMPLETE"}
    stored = study.optuna_study.get_trials(deepcopy=False)
    states = Counter(trial.state.name for trial in stored)
    assert states["COMPLETE"] == trials
    assert set(states) <= {"COMPLETE", "FAIL"}
    retried = [trial.system_attrs["retry_history"][-1] for trial in stored if "retry_history" in trial.system_attrs]
    lost = [trial.number for trial in stored if trial.state.name == "FAIL"]
    assert sorted(retried) == sorted(set(lost)), "each lost trial has exactly one retry, linked to it"


@pytest.mark.postgres
def test_workers_killed_every_few_trials_on_postgresql_lose_nothing(postgres_url: str, tmp_path: Path) -> None:
    assert kill_every_few_trials(postgres_url, tmp_path, trials=18, every=3) >= 3


def test_workers_killed_every_few_trials_on_sqlite_lose_nothing(tmp_path: Path) -> None:
    assert kill_every_few_trials(f"sqlite:///{tmp_path}/study.db", tmp_path, trials=8, every=3) >= 1


def test_worker_runs_reach_the_sweep_through_the_artifact_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    with led_study(url, tmp_path, 3) as (name, _):
        done = work(name, url)
    assert [record.number for record in done.records] == [0, 1, 2]
    assert (done.num_open, done.stopped) == (0, None)
    assert not (tmp_path / name / "trial-0001").exists()
    result = run_sweep(scenario(), out=tmp_path, seed=1, trials=3, storage=url, resume=True)
    assert result.directory.name == name
    assert len(load_run(result.directory / "trial-0001").record.requests) == 40
    assert result.best is not None


def test_sweep_results_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    one = run_sweep(scenario(), out=tmp_path / "one", trials=6)
    many = run_sweep(scenario(), out=tmp_path / "many", trials=6, workers=3)
    assert [(r.number, r.params, r.outcome.objective) for r in many.records] == [
        (r.number, r.params, r.outcome.objective) for r in one.records
    ]
    assert len(many.records) == 6
    for record in many.records:
        was_run = record.outcome.duplicate_of is None
        assert (many.directory / f"trial-000{record.number}" / "run.json").is_file() == was_run


def test_sweep_with_several_workers_on_the_wall_clock_is_refused(tmp_path: Path) -> None:
    embedded = scenario("model=tiny", "target={kind: embedded}", "engine={max_model_len: 256}")
    with pytest.raises(ScenarioError, match=r"--workers 2: trials on embedded engines .* would slow each other"):
        run_sweep(embedded, out=tmp_path, workers=2)


def test_sweep_whose_budget_is_used_up_gives_a_result_and_is_resumed(tmp_path: Path) -> None:
    first = run_sweep(scenario(), out=tmp_path, trials=50, budget_s=0.4)
    assert 1 <= len(first.records) < 50
    assert first.stopped == "the budget of 0.4 s is used up: go on with --resume"
    assert not first.is_cut_short
    assert first.best is not None
    more = len(first.records) + 1
    resumed = run_sweep(scenario(), out=tmp_path, trials=more, resume=True)
    assert [record.number for record in resumed.records] == list(range(more))
    assert resumed.stopped is None


def test_sweep_interrupted_stops_its_workers_and_keeps_what_is_finished(tmp_path: Path) -> None:
    """Ctrl-C in the sweep, then a worker that finds the study paused, then both go on."""
    url = f"sqlite:///{tmp_path}/study.db"

    def interrupt(record: object) -> None:
        raise KeyboardInterrupt

    events = sweep_module.SweepEvents(on_trial=interrupt)
    partial = run_sweep(scenario(), out=tmp_path, trials=5, storage=url, workers=2, events=events)
    assert partial.is_cut_short
    assert len(partial.records) == 1
    name = partial.directory.name
    assert json.loads((partial.directory / "study.json").read_text())["stopped"] == "interrupted: go on with --resume"
    idle = work(name, url)
    assert (idle.records, idle.num_open) == ([], 4)
    assert idle.stopped is not None
    whole = run_sweep(scenario(), out=tmp_path, trials=5, storage=url, resume=True)
    assert [record.number for record in whole.records] == [0, 1, 2, 3, 4]
    assert sum(record.num_lost for record in whole.records) == 0


def test_worker_interrupted_hands_its_trial_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"

    def interrupt(record: object) -> None:
        raise KeyboardInterrupt

    with led_study(url, tmp_path, 4) as (name, study):
        stopped = work(name, url, workers=2, events=WorkEvents(on_trial=interrupt))
        assert stopped.has_failed
        states = Counter(trial.state.name for trial in study.optuna_study.get_trials(deepcopy=False))
        assert states == {"COMPLETE": 1, "WAITING": 3}


def test_worker_of_a_study_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="--study nope: is not in this storage"):
        work("nope", f"sqlite:///{tmp_path}/study.db")


def test_worker_whose_requests_come_out_otherwise_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    with led_study(url, tmp_path, 1) as (name, study):
        study.set_facts({"workload": "0" * 64})
        with pytest.raises(ScenarioError, match="its requests come out otherwise on this machine"):
            work(name, url)


def test_worker_on_a_journal_is_refused_as_its_death_would_go_unnoticed(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="nobody would notice there that a worker died"):
        work("s", f"journal:///{tmp_path}/journal.log")


def test_sweep_in_a_storage_is_not_resumed_without_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    with led_study(url, tmp_path, 1):
        pass
    with pytest.raises(ScenarioError, match=r"is kept in sqlite:///.*study\.db\. Give that with --storage"):
        run_sweep(scenario(), out=tmp_path, seed=1, resume=True)


def test_sweep_of_the_same_definition_from_another_folder_gets_a_study_of_its_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    with led_study(url, tmp_path / "a", 1) as (first, _), led_study(url, tmp_path / "b", 1) as (second, _):
        assert second == f"{first}-2"
