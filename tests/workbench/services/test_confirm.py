"""Finalists on fresh requests: in turn, paired, with the error of the prediction in the interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from workbench.scenario import Scenario, parse_scenario
from workbench.search.confirmation import Confirmation
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.trials import TrialRecord
from workbench.services.confirm import confirm_finalists, scenario_to_confirm
from workbench.services.trials import TrialWorker

TEXT = """
name: confirm
model: Qwen/Qwen2.5-7B-Instruct
target: {kind: simulated, gpu: a100-80g-sxm}
engine: {max_model_len: 2048}
workload:
  num_requests: 10
  arrivals: {kind: all_at_once}
  classes:
    - {name: a, input_tokens: 20, output_tokens: 4}
search:
  objective: output_tokens_per_s
  confirm: {finalists: 2, repeats: 3}
  space:
    max_num_seqs: {low: 2, high: 8}
    tensor_parallel_size: {choices: [1, 2]}
"""


def scenario(*overrides: str) -> Scenario:
    return parse_scenario(TEXT, source="confirm.yaml", overrides=list(overrides), directory=Path())


def trial(number: int, seqs: int, objective: float, verdict: str = "VALID") -> TrialRecord:
    outcome = TrialOutcome(state=TrialState.COMPLETE, objective=objective, verdict=verdict)
    return TrialRecord(number=number, params={"max_num_seqs": seqs, "tensor_parallel_size": 1}, outcome=outcome)


class Worker:
    """Answers with a figure per sequence cap and seed, and notes what it was asked."""

    def __init__(self, answer: Callable[[int, int], TrialOutcome]) -> None:
        self.answer = answer
        self.asked: list[tuple[Mapping[str, Any], int]] = []

    def evaluate(self, params: Mapping[str, Any], *, seed: int, hints: object) -> TrialOutcome:
        self.asked.append((params, seed))
        return self.answer(params["max_num_seqs"], seed)


def value(objective: float, **changes: Any) -> TrialOutcome:
    return TrialOutcome(state=TrialState.COMPLETE, objective=objective, verdict="VALID", **changes)


RECORDS = [trial(0, 2, 100.0), trial(1, 4, 150.0), trial(2, 6, 160.0), trial(3, 8, 900.0, "SUSPECT")]


def confirm(worker: Worker, spec: Scenario) -> Confirmation:
    assert spec.search is not None
    runs: list[tuple[int, int]] = []
    return confirm_finalists(
        spec,
        spec.search,
        RECORDS,
        workers=[cast(TrialWorker, worker)],
        repeats=spec.search.confirm.repeats,
        on_run=lambda done, total: runs.append((done, total)),
    )


def test_confirm_runs_default_and_finalists_in_turn_on_the_same_fresh_requests() -> None:
    worker = Worker(lambda seqs, seed: value(10.0 * seqs + seed))
    confirm(worker, scenario())
    assert [(params["max_num_seqs"], seed) for params, seed in worker.asked] == [
        *((2, 1), (6, 1), (4, 1)),
        *((4, 2), (6, 2), (2, 2)),
        *((2, 3), (6, 3), (4, 3)),
    ]


def test_confirm_takes_the_best_measured_and_states_the_errors_of_the_predictions() -> None:
    measured = {2: 100.0, 4: 140.0, 6: 120.0}
    found = confirm(Worker(lambda seqs, seed: value(measured[seqs] + seed)), scenario())
    assert found.winner is not None
    assert found.winner.number == 1
    errors = {each.record.number: each.error for each in found.finalists}
    assert errors[2] == pytest.approx(160 / 122 - 1)
    assert errors[1] == pytest.approx(150 / 142 - 1)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(0.39, abs=0.02)
    assert found.result is not None
    alone = confirm(Worker(lambda seqs, seed: value(measured[seqs] + seed)), scenario("search.confirm.finalists=1"))
    assert alone.result is not None
    assert found.result.high / found.result.low > alone.result.high / alone.result.low


def test_confirm_counts_no_failed_and_no_invalid_run() -> None:
    def answer(seqs: int, seed: int) -> TrialOutcome:
        if seqs == 6:
            return TrialOutcome(state=TrialState.FAILED, reason="died")
        return TrialOutcome(state=TrialState.COMPLETE, objective=999.0, verdict="INVALID") if seed == 1 else value(50.0)

    found = confirm(Worker(answer), scenario())
    assert found.winner is not None
    assert found.winner.number == 1
    assert {each.record.number: each.measured for each in found.finalists} == {
        2: (None, None, None),
        1: (None, 50.0, 50.0),
    }


def test_confirm_on_another_target_leaves_out_what_only_a_simulated_device_has() -> None:
    spec = scenario("search.confirm.target=embedded", "search.confirm.num_requests=40")
    assert spec.search is not None
    there = scenario_to_confirm(spec, spec.search.confirm)
    assert there.target.kind == "embedded"
    assert there.workload.num_requests == 40
    worker = Worker(lambda seqs, seed: value(1.0))
    assert confirm(worker, spec).target == "embedded"
    assert all(set(params) == {"max_num_seqs"} for params, _ in worker.asked)
