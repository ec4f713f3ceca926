"""Every row of an input is used, or skipped for a reason that is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from workbench.plan.question import PlanQuestion
from workbench.plan.task import build_task
from workbench.scenario import ScenarioError, parse_scenario
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.trials import TrialRecord
from workbench.services.budget import Question, budget
from workbench.services.foresight import marked_if_fewer
from workbench.workload import ModelLimits, Workload, generate_workload
from workbench.workload.account import ImportAccount

OVER = "input + output over max_model_len 4096"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


@pytest.fixture
def half_long(tmp_path: Path) -> Path:
    """40 requests of 100 tokens, 40 of 9,000, one without output, one unreadable."""
    rows = "".join(f"{row},{9_000 if row % 2 else 100},50\n" for row in range(80))
    path = tmp_path / "half.csv"
    path.write_text(VIDUR + rows + "80,100,0\n81,many,5\n")
    return path


def workload_of(workload: str) -> Workload:
    scenario = parse_scenario(f"name: t\nworkload: {workload}")
    return generate_workload(scenario, ModelLimits(max_model_len=4096, vocab_size=512))


def test_account_of_a_trace_names_every_reason_once_even_if_it_is_replayed_twice(half_long: Path) -> None:
    workload = workload_of(f"{{arrivals: {{kind: trace, path: {half_long}, loop: 2}}}}")

    found = workload.summary.account

    assert len(workload) == 80
    assert (found.read, found.used) == (82, 40)
    assert found.skipped == {
        "num_prefill_tokens is not a number of tokens": 1, "no output tokens": 1, OVER: 40,
    }  # fmt: skip
    assert workload.summary.describe()[-1].startswith("requests: 82 read = 40 used + 42 skipped (1 num_prefill")


def test_account_of_a_class_file_counts_its_rows_not_its_draws(half_long: Path) -> None:
    classes = f"[{{name: f, file: {{path: {half_long}}}}}]"
    workload = workload_of(f"{{num_requests: 400, arrivals: {{kind: poisson, rate: 4}}, classes: {classes}}}")

    assert len(workload) == 200
    assert workload.summary.account.to_dict() == {
        "read": 82, "used": 40,
        "skipped": {"num_prefill_tokens is not a number of tokens": 1, "no output tokens": 1, OVER: 40},
    }  # fmt: skip


def test_account_of_generated_requests_counts_those_left_out() -> None:
    classes = "[{name: wide, input_tokens: {kind: uniform, low: 100, high: 8000}, output_tokens: 48}]"
    workload = workload_of(
        f"{{over_long: drop, num_requests: 100, arrivals: {{kind: poisson, rate: 4}}, classes: {classes}}}"
    )

    found = workload.summary.account

    assert found.read == 100
    assert found.used == len(workload) < 100
    assert found.skipped == {OVER: 100 - len(workload)}


def question(trace: Path, max_model_len: int | None = None) -> PlanQuestion:
    return PlanQuestion(
        model="Qwen/Qwen2.5-7B-Instruct", gpus=["a100-80g-sxm"], trace=trace, rate_per_s=1.0, slo=["ttft_p95=8s"],
        max_model_len=max_model_len, with_alternatives=False,
    )  # fmt: skip


def test_plan_is_sized_for_every_row_that_the_window_of_the_model_holds(half_long: Path) -> None:
    task = build_task(question(half_long))

    assert int(task.workload.num_prompt_tokens.max()) == 9_000
    assert task.scenario.engine["max_model_len"] == 9_216
    assert task.workload.summary.account.to_dict()["used"] == 80


def test_plan_of_a_distill_holds_prompts_over_the_window_of_the_model_it_was_made_from(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text(VIDUR + "".join(f"{2 * row},{36_000 if row % 2 else 2_000},200\n" for row in range(600)))
    asked = PlanQuestion(**{**_fields(question(path)), "model": "DeepSeek-R1-Distill-Qwen-32B", "gpus": ["h200"]})

    task = build_task(asked)

    assert task.workload.summary.account.to_dict() == {"read": 600, "used": 600, "skipped": {}}
    assert task.scenario.engine["max_model_len"] == 36_864


def test_plan_refuses_rows_over_the_window_that_was_chosen(half_long: Path) -> None:
    with pytest.raises(ScenarioError, match=r"40 of 80 rows\. Raise engine\.max_model_len to 9050"):
        build_task(question(half_long, max_model_len=4096))


def test_plan_leaves_out_rows_over_a_chosen_window_where_it_was_told_to(half_long: Path) -> None:
    asked = question(half_long, max_model_len=4096)
    scenario = build_task(PlanQuestion(**{**_fields(asked), "overrides": ["workload.over_long=drop"]}))

    assert scenario.workload.summary.account.skipped[OVER] == 40


def _fields(asked: PlanQuestion) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in PlanQuestion.__dataclass_fields__}


def test_budget_takes_lengths_of_the_rows_that_a_replay_would_issue(half_long: Path) -> None:
    asked = Question(model="Qwen/Qwen2.5-7B-Instruct", gpu="a100-80g-sxm", lengths=half_long)

    lengths = budget(asked).to_json()["lengths"]

    assert lengths["num_requests"] == 80
    assert lengths["mean"] == (150 + 9_050) / 2
    assert lengths["requests"]["read"] == 82
    assert sum(lengths["requests"]["skipped"].values()) == 2


def test_budget_refuses_a_file_of_failures(tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    path.write_text(VIDUR + "1,10,0\n2,10,0\n")

    with pytest.raises(ConfigError, match="has no requests to take lengths from"):
        budget(Question(model="Qwen2.5-7B", gpu="a100-80g-sxm", lengths=path))


@pytest.mark.parametrize(("used", "verdict"), [(80, "VALID"), (40, "SUSPECT")])
def test_trial_that_leaves_out_requests_of_the_default_cannot_win(used: int, verdict: str) -> None:
    def outcome(used: int) -> TrialOutcome:
        account = ImportAccount(read=80, used=80).without(80 - used, OVER)
        return TrialOutcome(state=TrialState.COMPLETE, verdict="VALID", objective=1.0, requests=account.to_dict())

    marked = marked_if_fewer(outcome(used), [TrialRecord(number=0, params={}, outcome=outcome(80))])

    assert marked.verdict == verdict
    assert marked.may_win is (verdict == "VALID")
