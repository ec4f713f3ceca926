"""`workbench plan` as a use case."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from workbench.plan.comparison import mark_pareto
from workbench.plan.day import parse_day, plan_day
from workbench.plan.fleets import vary_fleet
from workbench.plan.plan import Plan, plan
from workbench.plan.question import PlanQuestion
from workbench.plan.replicas import size_fleet, smallest
from workbench.plan.task import build_task
from workbench.scenario import ScenarioError, load_scenario
from workbench.search.outcome import TrialState
from workbench.services.export import export
from workbench.services.foresight import settle
from workbench.store.plans import write_plan


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "scenario.yaml"
    document = {
        "name": "chat",
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "engine": {"max_num_batched_tokens": 2048},
        "target": {"kind": "simulated", "gpu": "a100-80g-sxm"},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 24},
            "classes": [{"name": "chat", "count": 300, "input_tokens": 1200, "output_tokens": 40}],
        },
        "slo": {"ttft_p95": "1s", "tpot_p95": "50ms"},
    }
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(scope="module")
def found(scenario: Path) -> Plan:
    return plan(PlanQuestion(scenario=scenario, with_alternatives=False), lambda _: None)


def test_plan_minimum_holds_and_one_fewer_does_not(found: Plan) -> None:
    minimum = found.values["replicas"]["minimum"]
    runs = {
        run["replicas"]: run["holds"] for run in found.values["replicas"]["simulated"] if run["rate_per_s"] < 25
    }  # fmt: skip

    assert minimum > 1
    assert runs[minimum]
    assert not runs[minimum - 1]


def test_plan_figures_carry_interval_and_source(found: Plan) -> None:
    for name in ("sustainable_rate_per_s", "concurrency"):
        figure = found.values["instance"][name]
        assert 0 < figure["low"] < figure["value"] < figure["high"]
        assert "P90 error" in figure["source"]


def test_plan_fleets_grow_with_headroom_and_with_the_loss_of_one(found: Plan) -> None:
    replicas = found.values["replicas"]

    assert replicas["with_headroom"] >= replicas["minimum"]
    assert replicas["with_spare"] == replicas["n_minus_1"] == replicas["minimum"] + 1


def test_plan_interval_of_the_replicas_holds_the_simulated_minimum(found: Plan) -> None:
    replicas = found.values["replicas"]

    assert replicas["low"] <= replicas["minimum"] <= replicas["high"]


FEW = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-05-12 00:00:{second:02d}.5,800,{tokens}\n" for second, tokens in enumerate((20, 30, 40, 50, 60))
)


def test_trace_too_short_to_show_the_limits_is_replayed_and_said(tmp_path: Path) -> None:
    trace = tmp_path / "few.csv"
    trace.write_text(FEW)
    question = PlanQuestion(
        model="Qwen2.5-7B",
        gpus=["a100-80g-sxm"],
        trace=trace,
        rate_per_s=4,
        slo=["ttft_p95=2s"],
        with_alternatives=False,
    )

    values = plan(question, lambda _: None).values

    assert values["tokens"]["num_requests"] == 600
    assert values["replicas"]["minimum"] == 1
    assert "has 5 requests" in values["warnings"][0]


def test_trace_that_ends_in_a_burst_is_no_backlog(tmp_path: Path) -> None:
    seconds = [float(number) for number in range(90)] + [90 + number / 30 for number in range(12)]
    rows = [f"2024-05-12 00:{int(at) // 60:02d}:{at % 60:09.6f},800,40" for at in seconds]
    trace = tmp_path / "burst.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    question = PlanQuestion(
        model="Qwen2.5-7B",
        gpus=["a100-80g-sxm"],
        trace=trace,
        rate_per_s=1,
        slo=["ttft_p95=2s"],
        with_alternatives=False,
    )

    values = plan(question, lambda _: None).values

    assert values["replicas"]["minimum"] == 1
    assert values["instance"]["sustainable_rate_per_s"]["value"] > 1


def test_scenario_with_too_few_requests_to_show_the_limits_says_how_many_it_takes(scenario: Path) -> None:
    question = PlanQuestion(scenario=scenario, overrides=["workload.classes.0.count=40"], with_alternatives=False)

    with pytest.raises(ConfigError, match="40 requests cannot show that the limits hold, at least 73 can"):
        plan(question, lambda _: None)


def test_plan_file_is_what_export_deploys(found: Plan, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.yaml", found.to_document())

    text = export(tmp_path / "plan.yaml", "vllm-args").text

    assert "Qwen/Qwen2.5-7B-Instruct" in text
    assert "--max-num-batched-tokens 2048" in text


def test_plan_of_a_scenario_with_admission_limits_leaves_them_out_of_the_figures_and_deploys_them(
    scenario: Path, found: Plan, tmp_path: Path
) -> None:
    overrides = [
        "target.queue_limit=16",
        "target.rate_limit={requests_per_s: 2, burst: 4}",
        "target.autoscaling={max_replicas: 9, waiting_per_replica: 3}",
        "target.failures=[{replica: 0, at_s: 5}]",
    ]
    task = build_task(PlanQuestion(scenario=scenario, overrides=overrides))
    write_plan(
        tmp_path / "plan.yaml",
        replace(
            found, answer=replace(found.answer, task=replace(found.answer.task, admission=task.admission))
        ).to_document(),
    )

    manifests = export(tmp_path / "plan.yaml", "k8s").text

    assert task.scenario.target == load_scenario(scenario).target
    assert task.left_out == ("autoscaling", "failures", "queue_limit", "rate_limit")
    assert "maxReplicas: 9" in manifests
    assert "rate=2r/s" in manifests
    assert "burst=4" in manifests


def test_routings_beside_a_fleet_can_all_be_built(scenario: Path) -> None:
    task = build_task(PlanQuestion(scenario=scenario))
    found = {each.name: each.applied(task).target for each in vary_fleet(task, 4)}

    assert {name for name in found if "prefill" in name} == {
        "1 prefill, 3 decode",
        "2 prefill, 2 decode",
        "3 prefill, 1 decode",
    }
    lost = found["one more, which fails halfway"]
    assert (lost.num_replicas, lost.failures[0].replica) == (5, 4)
    assert all(each.is_fleet for each in found.values())


def test_task_without_limits_says_how_to_give_them(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:15:{i:02d}.0000000,100,10\n" for i in range(5)
    ))  # fmt: skip
    question = PlanQuestion(model="Qwen/Qwen2.5-7B-Instruct", gpus=["a100-80g-sxm"], trace=trace, rate_per_s=1.0)

    with pytest.raises(ConfigError, match="--slo"):
        build_task(question)


def test_task_with_an_unknown_limit_names_it() -> None:
    question = PlanQuestion(model="m", gpus=["a100-80g-sxm"], trace=Path("x"), rate_per_s=1.0, slo=["ttfx_p95=1s"])

    with pytest.raises(ScenarioError, match="ttfx_p95"):
        build_task(question)


@pytest.mark.parametrize("guess", [1, 4, 5, 9])
def test_smallest_from_any_guess_finds_where_it_turns(guess: int) -> None:
    assert smallest(lambda replicas: replicas >= 5, guess) == 5


def test_smallest_from_a_guess_far_above_tries_few() -> None:
    tried: list[int] = []

    def holds(replicas: int) -> bool:
        tried.append(replicas)
        return replicas >= 5

    assert smallest(holds, 40) == 5
    assert tried == [40, 39, 37, 33, 25, 9, 1, 5, 3, 4]


def test_mark_pareto_keeps_what_nothing_beats_in_both() -> None:
    rows = [
        {"usd_per_hour": cost, "latency": {"e2el_s.p95": latency}}
        for cost, latency in ((1.0, 9.0), (2.0, 3.0), (3.0, 4.0))
    ]

    mark_pareto(rows)

    assert [row["is_pareto"] for row in rows] == [True, True, False]


def test_sweep_over_a_fleet_settles_trials_by_arithmetic(scenario: Path) -> None:
    fleet = load_scenario(scenario, ["target.replicas=2"])

    assert settle(fleet, {"max_num_seqs": 64}, ()) is None
    refused = settle(fleet, {"gpu_memory_utilization": 0.05}, ())

    assert refused is not None
    assert refused.state is TrialState.INFEASIBLE


def test_plan_file_names_its_trace_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i / 4},{100 + i % 9},{5 + i % 3}\n" for i in range(300))
    Path("trace.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}")
    question = PlanQuestion(
        model="Qwen/Qwen2.5-7B-Instruct",
        gpus=["a100-80g-sxm"],
        trace=Path("trace.csv"),
        rate_per_s=2.0,
        slo=["ttft_p95=1s"],
        overrides=["engine.max_num_batched_tokens=2048"],
        with_alternatives=False,
    )

    document = plan(question, lambda _: None).to_document()

    assert document["scenario"]["workload"]["arrivals"]["path"] == str(tmp_path / "trace.csv")


def lengths(**options: Any) -> PlanQuestion:
    values: dict[str, Any] = {
        "model": "Qwen/Qwen2.5-7B-Instruct", "gpus": ["a100-80g-sxm"], "input_tokens": 800, "output_tokens": 20,
        "cv": 0.6, "rate_per_s": 30.0, "slo": ["ttft_p95=1s", "tpot_p95=60ms"],
        "overrides": ["engine.max_num_batched_tokens=2048", "workload.num_requests=320"],
    }  # fmt: skip
    return PlanQuestion(**{**values, **options})


@pytest.fixture(scope="module")
def compared() -> Plan:
    return plan(lengths(gpus=["A100-SXM-80GB", "l40s-48g", "a100-80g-sxm"]), lambda _: None)


def test_comparison_has_one_row_for_each_gpu_whatever_its_spellings(compared: Plan) -> None:
    rows = compared.values["alternatives"]
    assert sorted(row["gpu"] for row in rows) == ["a100-80g-sxm", "l40s-48g"]
    assert compared.values["does_not_fit"] == compared.values["not_planned"] == []


def test_comparison_is_led_by_its_cheapest_row(compared: Plan) -> None:
    rows = compared.values["alternatives"]
    assert [row["usd_per_hour"] for row in rows] == sorted(row["usd_per_hour"] for row in rows)
    assert compared.values["gpu"] == rows[0]["gpu"]
    assert compared.values["replicas"]["minimum"] == rows[0]["replicas"]


def test_row_of_a_comparison_is_what_a_plan_of_its_own_says(compared: Plan) -> None:
    row = next(row for row in compared.values["alternatives"] if row["gpu"] == "l40s-48g")
    alone = plan(lengths(gpus=["l40s-48g"], with_alternatives=False), lambda _: None).values
    assert row["replicas"] == alone["replicas"]["minimum"]
    assert row["sustainable_rate_per_s"] == alone["instance"]["sustainable_rate_per_s"]
    assert row["usd_per_hour"] == alone["cost"]["usd_per_hour"]


def test_comparison_names_what_does_not_fit_with_a_remedy() -> None:
    asked = lengths(model="Qwen/Qwen2.5-32B-Instruct", gpus=["rtx-4090", "h200"], rate_per_s=4.0)
    values = plan(asked, lambda _: None).values
    assert [row["gpu"] for row in values["alternatives"]] == ["h200-141g-sxm"]
    refused = values["does_not_fit"][0]
    assert refused["gpu"] == "rtx-4090-24g"
    assert "GPUs (tensor parallel)" in refused["remedy"]


def test_load_too_short_for_a_steady_state_is_floored_by_division(tmp_path: Path) -> None:
    rows = "".join(f"{i / 20},{800 + i % 9},{40 + i % 3}\n" for i in range(200))
    (tmp_path / "trace.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}")
    asked = PlanQuestion(
        model="Qwen2.5-7B", gpus=["a100-80g-sxm"], trace=tmp_path / "trace.csv", rate_per_s=300.0,
        slo=["ttft_p95=2s"], overrides=["engine.max_num_batched_tokens=2048"], with_alternatives=False,
    )  # fmt: skip
    values = plan(asked, lambda _: None).values
    rate = values["instance"]["sustainable_rate_per_s"]["value"]
    assert values["replicas"]["minimum"] == values["replicas"]["floor"] == math.ceil(300.0 / rate)
    assert "too short" in values["replicas"]["explanation"]


def test_limit_that_a_lone_request_misses_comes_with_its_floor() -> None:
    with pytest.raises(
        ConfigError, match=r"ttft_p95: a request alone in the server takes 0\.\d+ s, the limit is 0\.001"
    ):
        plan(lengths(slo=["ttft_p95=1ms"]), lambda _: None)


def test_users_instead_of_a_rate_are_carried_by_a_fleet() -> None:
    values = plan(lengths(rate_per_s=None, concurrency=32, with_alternatives=False), lambda _: None).values
    assert values["concurrency"] == 32
    assert values["replicas"]["minimum"] >= 1
    assert all(limit["share_reached"] >= limit["share_required"] for limit in values["limits"])


def test_day_costs_less_scaled_than_fixed(compared: Plan) -> None:
    steps = parse_day(["0=5,8=60", "20=20"])
    day = plan_day(compared.answer, steps, 120.0)
    counts = [step["replicas"] for step in day["steps"]]
    assert counts[0] <= counts[2] <= counts[1]
    started_h = (counts[1] - counts[0]) * 120 / 3600
    expected = 8 * counts[0] + 12 * counts[1] + 4 * counts[2] + started_h
    assert day["replica_hours_scaled"] == pytest.approx(expected, rel=1e-3)
    assert day["replica_hours_fixed"] == 24 * counts[1]


@pytest.mark.parametrize("text", ["8", "25=3", "x=1", "3=-1"])
def test_day_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--day: must be HOUR=RATE"):
        parse_day([text])


def test_plan_says_what_it_rests_on(found: Plan) -> None:
    basis = found.values["basis"]
    assert (basis["kind"], basis["gpu"], basis["tp"], basis["vllm_version"]) == ("simulated", "a100-80g-sxm", 1, "0.32")
    assert 0 < basis["error_p90"] < 1
    assert found.values["basis_sentence"].startswith("Simulated: Qwen/Qwen2.5-7B-Instruct on 1 x a100-80g-sxm")
    assert found.values["serve_command"].startswith("vllm serve Qwen/Qwen2.5-7B-Instruct ")


def test_plan_echoes_each_limit_with_value_and_shares(found: Plan) -> None:
    ttft, tpot = found.values["limits"]
    assert (ttft["name"], ttft["limit_s"], ttft["share_required"]) == ("ttft_p95", 1.0, 0.95)
    assert (tpot["name"], tpot["limit_s"]) == ("tpot_p95", 0.05)
    assert ttft["value_s"] <= 1.0
    assert ttft["share_reached"] >= 0.95


def test_load_that_would_take_thousands_of_replicas_is_refused(found: Plan) -> None:
    instance = found.answer.instance
    slow = replace(instance, rate_per_s=replace(instance.rate_per_s, value=0.01))
    with pytest.raises(ConfigError, match=r"one instance carries 0\.01/s .* about 2,4\d\d replicas, more than 512"):
        size_fleet(found.answer.task, slow)
