"""Runs with a planted cause, simulated: the doctor names it first. Healthy ones: nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_doctor
from workbench.scenario import Scenario, ScenarioError, load_scenario, scenario_to_dict
from workbench.scenario.loader import parse_scenario
from workbench.services.doctor import Diagnosis, diagnose
from workbench.services.doctor_run import read_run
from workbench.services.evaluate import run_scenario, store_run
from workbench.services.rate_trial import run_for_rate
from workbench.services.targets import check_target
from workbench.store.studies import save_study

QWEN, LLAMA_13B = "Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-2-13b-hf"
CHAT = {
    "name": "chat",
    "input_tokens": {"kind": "lognormal", "median": 400, "sigma": 0.6, "max": 3000},
    "output_tokens": {"kind": "lognormal", "median": 200, "sigma": 0.5, "max": 600},
}
SCENARIOS = Path("scenarios")


def uniform(low: int, high: int) -> dict[str, Any]:
    return {"kind": "uniform", "low": low, "high": high}


def kind(prompt: Any, output: Any, name: str = "all", weight: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"name": name, "weight": weight, "input_tokens": prompt, "output_tokens": output, **more}


SHORT, LONG = kind(uniform(50, 200), uniform(20, 60), "short", 97), kind(uniform(25000, 31000), 40, "long", 3)


def scenario(
    *classes: dict[str, Any],
    rate: float = 4,
    count: int = 150,
    model: str = QWEN,
    gpu: str = "a100-80g-sxm",
    arrivals: dict[str, Any] | None = None,
    max_concurrency: int | None = None,
    ttft: str | None = "1s",
    fleet: dict[str, Any] | None = None,
    **engine: Any,
) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "planted",
            "seed": 1,
            "model": model,
            "engine": {"max_model_len": 4096, **engine},
            "target": {"kind": "simulated", "gpu": gpu, **(fleet or {})},
            "workload": {
                "num_requests": count,
                "arrivals": arrivals or {"kind": "poisson", "rate": rate},
                "max_concurrency": max_concurrency,
                "classes": list(classes) or [CHAT],
            },
            "slo": None if ttft is None else {"ttft_p95": ttft},
        }
    )


def doctor(planted: Scenario, directory: Path) -> Diagnosis:
    return diagnose(store_run(directory / "run", run_scenario(planted)))


PLANTED: dict[str, tuple[str, Scenario]] = {
    "small cache": ("kv_cache_full", scenario(num_blocks=400, rate=8)),
    "small cache, no SLO": ("kv_cache_full", scenario(num_blocks=400, rate=8, ttft=None)),
    "13B on a small card": ("kv_cache_full", scenario(model=LLAMA_13B, gpu="a100-40g", rate=3, count=200)),
    "small budget": (
        "token_budget_too_small",
        scenario(kind(uniform(1500, 3000), uniform(50, 150)), max_num_batched_tokens=64, max_num_seqs=64),
    ),
    "small budget, many decodes": (
        "token_budget_too_small",
        scenario(kind(200, uniform(100, 300)), rate=20, count=400, max_num_batched_tokens=64, max_num_seqs=64),
    ),
    "few seats": ("sequence_cap_too_small", scenario(max_num_seqs=8, rate=6)),
    "long answers hold the seats": (
        "sequence_cap_too_small",
        scenario(
            kind(100, uniform(10, 30)), kind(400, 2000, "long", 0.2), rate=3.5, max_num_seqs=8, max_model_len=8192
        ),
    ),
    "cap far away": ("cap_never_reached", scenario(max_num_seqs=1024, max_num_batched_tokens=8192, rate=2)),
    "cap out of reach": (
        "cap_never_reached",
        scenario(kind(1000, 500), model=LLAMA_13B, rate=1.3, count=100, max_num_seqs=256),
    ),
    "answers outgrow the cache": (
        "preemption_storm",
        scenario(kind(uniform(50, 150), uniform(1500, 2500)), model=LLAMA_13B, rate=3, count=100),
    ),
    "many long answers": (
        "preemption_storm",
        scenario(kind(uniform(50, 150), uniform(800, 1500)), num_blocks=2000, max_num_seqs=256),
    ),
    "varying header": (
        "prefix_cache_misses",
        scenario(kind(120, 60, shared_prefix={"tokens": 1500, "position": "behind_header", "header_tokens": 16})),
    ),
    "question before document": (
        "prefix_cache_misses",
        scenario(kind(1, 100, shared_prefix={"tokens": 2000, "position": "behind_header", "header_tokens": 75})),
    ),
    "the only replica fails": (
        "replicas_missing",
        scenario(fleet={"failures": [{"replica": 0, "at_s": 10, "restart_after_s": 5}]}),
    ),
    "a proxy that sends no stream again": (
        "replicas_missing",
        scenario(rate=10, fleet={"replicas": 2, "failures": [{"replica": 0, "at_s": 8}], "retry": "none"}),
    ),
    "clients under a low limit": (
        "rate_limit_too_low",
        scenario(fleet={"rate_limit": {"requests_per_s": 0.1, "clients": 10}}),
    ),
    "a limit for all under the load": (
        "rate_limit_too_low",
        scenario(rate=8, fleet={"replicas": 2, "rate_limit": {"requests_per_s": 4, "burst": 4, "per": "all"}}),
    ),
    "two replicas for the load of three": (
        "saturation",
        scenario(kind(1500, 100), rate=30, count=600, fleet={"replicas": 2}),
    ),
    "a few huge prompts": ("head_of_line_blocking", scenario(SHORT, LONG, count=300, max_model_len=32768)),
    "990 short, 100 medium": (
        "head_of_line_blocking",
        scenario(
            kind(50, 50, "short", 99),
            kind(10240, 50, "medium", 10),
            model="Qwen/Qwen3-8B",
            gpu="h100",
            rate=20,
            count=500,
            ttft="300ms",
            max_model_len=16384,
            max_num_batched_tokens=22000,
        ),
    ),
    "reserved window": ("max_model_len_too_large", scenario(model=LLAMA_13B, kv_policy="contiguous", rate=3)),
    "window the size of the cache": (
        "max_model_len_too_large",
        scenario(num_blocks=2500, rate=1, max_model_len=32768),
    ),
    "utilisation 0.99": ("memory_headroom", scenario(gpu_memory_utilization=0.99, rate=2)),
    "huge steps at 0.96": (
        "memory_headroom",
        scenario(gpu_memory_utilization=0.96, max_num_batched_tokens=32768, max_model_len=32768, rate=2),
    ),
    "three times the load": ("saturation", scenario(rate=60, count=800)),
    "13B over its rate": ("saturation", scenario(model=LLAMA_13B, rate=12, count=300)),
    "prefills fill the device": (
        "saturation",
        scenario(
            kind(uniform(2500, 3500), uniform(100, 200)),
            model=LLAMA_13B,
            arrivals={"kind": "closed_loop", "concurrency": 10, "think_time": "1s"},
            count=60,
        ),
    ),
    "client cap": ("client_bottleneck", scenario(max_concurrency=2, rate=5)),
}


@pytest.mark.parametrize("name", list(PLANTED))
def test_doctor_names_the_planted_cause_first(name: str, tmp_path: Path) -> None:
    code, planted = PLANTED[name]
    findings = doctor(planted, tmp_path).findings
    assert [finding.code for finding in findings][:1] == [code], [(f.code, f.symptom) for f in findings]
    assert findings[0].changes
    assert any(isinstance(value, (int, float)) for value in findings[0].evidence.values())


HEALTHY: dict[str, Scenario] = {
    "light chat": scenario(),
    "light chat on a larger model": scenario(model=LLAMA_13B, gpu="h100", rate=2, max_num_seqs=64),
    "closed loop": scenario(arrivals={"kind": "closed_loop", "concurrency": 16}, gpu="l40s"),
    "shared prefix in front": scenario(kind(120, 60, shared_prefix={"tokens": 1500})),
    "batch": scenario(kind(500, 100), arrivals={"kind": "all_at_once"}, ttft=None),
    "one request": scenario(count=1),
    "a failure that others make up for": scenario(fleet={"replicas": 3, "failures": [{"replica": 1, "at_s": 10}]}),
    "prefill and decode apart": scenario(
        fleet={
            "pools": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}],
            "link": {"bandwidth_gb_per_s": 25},
        }
    ),
}


@pytest.mark.parametrize("name", list(HEALTHY))
def test_doctor_finds_nothing_in_a_healthy_run(name: str, tmp_path: Path) -> None:
    assert [finding.code for finding in doctor(HEALTHY[name], tmp_path).findings] == []


@pytest.mark.parametrize(
    "name",
    ["agentic", "burst", "chat-system-prompt", "long-document", "medium", "multi-turn", "offline-batch",
     "rag-document-front", "short-qa"],
)  # fmt: skip
def test_doctor_finds_nothing_in_the_gallerys_healthy_scenarios(name: str, tmp_path: Path) -> None:
    found = doctor(load_scenario(SCENARIOS / f"{name}.yaml", []), tmp_path)
    assert [finding.code for finding in found.findings] == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("pitfall-long-starves-short", "sequence_cap_too_small"),
        ("pitfall-max-model-len", "max_model_len_too_large"),
        ("pitfall-varying-header", "prefix_cache_misses"),
        ("rag-document-behind", "prefix_cache_misses"),
        ("ramp-to-saturation", "saturation"),
    ],
)
def test_doctor_names_the_pitfall_of_a_gallery_scenario(name: str, code: str, tmp_path: Path) -> None:
    assert doctor(load_scenario(SCENARIOS / f"{name}.yaml", []), tmp_path).findings[0].code == code


def test_varying_header_shows_the_first_differing_token(tmp_path: Path) -> None:
    finding = doctor(load_scenario(SCENARIOS / "pitfall-varying-header.yaml", []), tmp_path).findings[0]
    assert (finding.evidence["first_differing_token"], finding.evidence["common_from"]) == (0, 16)
    assert finding.evidence["common_tokens"] == 1500
    assert len(set(finding.evidence["token_ids"])) == 2


BATCH = {
    **CHAT,
    "input_tokens": {"kind": "lognormal", "median": 130, "sigma": 1.1, "max": 2048},
    "output_tokens": {"kind": "lognormal", "median": 160, "sigma": 0.9, "max": 1024},
}


def test_batch_under_a_low_cap_is_told_what_a_higher_one_gives(tmp_path: Path) -> None:
    planted = scenario(
        BATCH, model="Qwen/Qwen3-32B", gpu="h100", count=400, arrivals={"kind": "all_at_once"}, ttft=None,
        max_model_len=8192, max_num_seqs=32,
    )  # fmt: skip
    run = run_scenario(planted)
    finding = diagnose(store_run(tmp_path / "run", run)).findings[0]
    assert finding.code == "sequence_cap_too_small"
    steps = run.record.steps
    share = sum(stop == "sequence_cap" for stop in steps.admission_stop) / len(steps)
    assert f"max_num_seqs 32 binds in {share:.0%} of the steps" in finding.symptom
    change = finding.changes[0]
    assert change.effect is not None
    four_times = run_scenario(planted, {change.parameter: change.value}).summary.overall.output_tokens_per_s
    assert (change.parameter, change.effect.after) == ("max_num_seqs", four_times)
    assert change.effect.after >= 1.5 * change.effect.before


def test_advice_is_never_in_force_too_small_or_empty(tmp_path: Path) -> None:
    planted = scenario(
        kind(16384, 512), model="meta-llama/Llama-3.1-70B-Instruct", gpu="h200", count=64,
        arrivals={"kind": "closed_loop", "concurrency": 32}, ttft="10s", max_model_len=17000,
        fleet={"quantization": "fp8", "kv_cache_dtype": "fp8"},
    )  # fmt: skip
    run = run_scenario(planted)
    peak = int(run.record.steps.num_running.max())
    changes = [change for finding in doctor(planted, tmp_path).findings for change in finding.changes]
    assert changes
    for change in changes:
        assert (change.parameter, change.value) != ("kv_cache_dtype", "fp8")
        assert change.parameter != "max_model_len" or change.value > 16384 + 512
        assert change.parameter != "max_num_seqs" or change.value != peak
    assert len({change.parameter for change in changes}) == len(changes)


def test_size_given_in_blocks_is_not_answered_with_utilization(tmp_path: Path) -> None:
    findings = doctor(scenario(num_blocks=400, rate=8, gpu_memory_utilization=0.6), tmp_path).findings
    parameters = [change.parameter for finding in findings for change in finding.changes]
    assert parameters[0] == "num_blocks"
    assert not {"gpu_memory_utilization", "kv_cache_dtype", "tensor_parallel_size"} & set(parameters)


@pytest.mark.parametrize(
    "name", ["small cache", "small budget", "few seats", "varying header", "clients under a low limit"]
)
def test_first_change_is_what_a_run_with_it_shows(name: str, tmp_path: Path) -> None:
    planted = PLANTED[name][1]
    change = doctor(planted, tmp_path).findings[0].changes[0]
    assert change.effect is not None
    assert change.effect.slo_attainment is not None
    text = json.dumps(planted.model_dump(mode="json"))
    again = run_scenario(parse_scenario(text, overrides=change.settings))
    assert again.summary.overall.slo_attainment == change.effect.slo_attainment[1]
    assert change.effect.is_better


def test_change_that_a_replay_shows_to_be_useless_is_not_offered(tmp_path: Path) -> None:
    findings = doctor(scenario(rate=60, count=400), tmp_path).findings
    effects = [change.effect for finding in findings for change in finding.changes]
    assert effects
    assert all(effect is None or effect.is_better for effect in effects)
    (replicas,) = [change for change in findings[0].changes if change.parameter == "replicas"]
    assert replicas.effect is not None
    assert replicas.effect.after < replicas.effect.before


def test_warm_up_is_left_out_of_the_diagnosis(tmp_path: Path) -> None:
    rush = {"kind": "stages", "stages": [{"rate": 60, "duration": "5s"}, {"rate": 1, "duration": "100s"}]}
    values = scenario(count=380, arrivals=rush).model_dump(mode="json")
    measured = Scenario.model_validate({**values, "measurement": {"warm_up": "60s"}})
    assert doctor(Scenario.model_validate(values), tmp_path / "all").findings
    assert doctor(measured, tmp_path / "measured").findings == ()


def test_run_of_a_real_engine_has_changes_marked_as_not_tried(tmp_path: Path) -> None:
    planted = Scenario.model_validate(
        {
            "name": "embedded",
            "model": "tiny",
            "engine": {"max_model_len": 256, "num_blocks": 200, "max_num_seqs": 1, "threads": 1},
            "workload": {
                "num_requests": 80,
                "arrivals": {"kind": "poisson", "rate": 2000},
                "classes": [kind(20, 30)],
            },
            "slo": {"ttft_p95": "1ms"},
        }
    )
    findings = doctor(planted, tmp_path).findings
    assert findings
    assert {change.effect for finding in findings for change in finding.changes} == {None}
    assert "not tried" in str(findings[0].changes[0])


def test_study_in_which_nothing_starts_names_why_and_what_would(tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    planted = scenario(kind(1000, 200), model="Qwen/Qwen3-32B", gpu="l40s", max_model_len=4096)
    reason = "No room for a KV cache: 44.55 GiB x gpu_memory_utilization 0.92 leaves -20.1 GiB"
    trials = [
        {
            "number": number,
            "state": "INFEASIBLE",
            "params": {"max_num_seqs": 8},
            "reason": reason.replace("20.1", f"2{number}.1"),
        }
        for number in range(4)
    ]
    trials.append({"number": 4, "state": "FAILED", "params": {}, "reason": "the server did not answer"})
    save_study(
        study,
        {"default": {"params": {}}, "best": None, "trials": trials, "scenario_resolved": scenario_to_dict(planted)},
    )
    (finding,) = diagnose(study).findings
    assert finding.code == "nothing_started"
    assert finding.symptom == "none of 5 trials gave a result (4 INFEASIBLE, 1 FAILED)"
    assert finding.cause.startswith("4 of them for this reason: No room for a KV cache")
    settings = [change.settings for change in finding.changes]
    assert ("target.tensor_parallel_size=2",) in settings
    for overrides in settings:
        text = json.dumps(planted.model_dump(mode="json"))
        check_target(parse_scenario(text, overrides=overrides), {})  # raises where it does not start


def test_first_remedy_helps_runs_that_it_was_not_made_on() -> None:
    found = bench_doctor.treat_all(seed=4711, num_constructed=14, num_random=3)
    measured = bench_doctor.shares(found)
    assert measured["helps"] >= 0.9, found
    assert measured["worsens"] == 0.0, found


def test_study_tells_what_the_best_trial_got_rid_of(tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    small = scenario(max_num_seqs=8, rate=6)
    store_run(study / "trial-0000", run_scenario(small))
    store_run(study / "trial-0001", run_scenario(small, {"max_num_seqs": 128}))
    trials = [
        {"number": number, "state": "COMPLETE", "params": {"max_num_seqs": seats}, "run": f"trial-{number:04d}"}
        for number, seats in enumerate((8, 128))
    ]
    trials.append({"number": 2, "state": "FAILED", "params": {}, "run": None, "reason": "out of memory in step 7"})
    save_study(study, {"default": {"params": {"max_num_seqs": 8}}, "best": {"number": 1}, "trials": trials})
    found = diagnose(study)
    assert [finding.code for finding in found.findings] == ["sequence_cap_too_small", "out_of_memory"]
    assert "the best trial (max_num_seqs=128) has it no more" in found.findings[0].where


@pytest.mark.parametrize("more", [{}, {"conversation": {"turns": 3, "think_time": "5s"}}], ids=["single", "turns"])
def test_prompts_of_a_run_at_a_sustainable_rate_are_made_again(more: dict[str, Any], tmp_path: Path) -> None:
    result = run_for_rate(scenario(kind(uniform(500, 900), uniform(20, 60), **more), max_num_seqs=8), {})
    evidence = read_run(store_run(tmp_path / "run", result.run)).evidence
    assert evidence.notes == ()
    assert evidence.prefix.are_prompts_known or (evidence.prefix.hit_rate or 0.0) >= 0.05


def test_doctor_of_something_else_says_what_it_reads(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("nothing of the kind\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match="neither a run, a study, a vLLM log nor a metrics dump"):
        diagnose(other)
    with pytest.raises(ScenarioError, match="does not exist"):
        diagnose(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScenarioError, match="folder without"):
        diagnose(tmp_path / "empty")
