"""Ways in without a scenario of one's own: `init`, and a sweep by flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.errors import ConfigError
from workbench.scenario import ScenarioError, load_scenario
from workbench.services.evaluate import run_scenario
from workbench.services.init import write_scenario
from workbench.services.sweep_question import SweepQuestion, load_question


@pytest.mark.parametrize(("model", "gpu"), [("Qwen/Qwen2.5-7B-Instruct", "a100-80g-sxm"), ("Qwen/Qwen3-8B", "L40S")])
def test_init_writes_a_commented_scenario_that_runs(model: str, gpu: str, tmp_path: Path) -> None:
    path = tmp_path / "my chat.yaml"
    write_scenario(path, model=model, gpu=gpu)
    scenario = load_scenario(path, ["workload.num_requests=60"])
    assert (scenario.model, scenario.has_slo, scenario.search is not None) == (model, True, True)
    assert path.read_text().count("#") >= 15
    assert run_scenario(scenario, {}).summary.overall.num_completed == 60


def test_init_refuses_to_overwrite_and_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(ScenarioError, match="exists already"):
        write_scenario(path, model="Qwen/Qwen3-8B", gpu="l40s")
    assert path.read_text() == "mine"
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization|KV cache"):
        write_scenario(tmp_path / "new.yaml", model="meta-llama/Llama-3.1-70B-Instruct", gpu="l4")
    assert not (tmp_path / "new.yaml").exists()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "Some trace.csv"
    rows = [f"{index * 0.5},{200 + 10 * index},{20 + index}" for index in range(60)]
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(rows), encoding="utf-8")
    return path


def test_sweep_by_flags_has_limits_space_and_a_window_for_the_longest_request(trace: Path) -> None:
    scenario = load_question(
        SweepQuestion(
            model="Qwen/Qwen3-8B", gpu="l40s", trace=trace, slo=["ttft_p95=2s"], rate_per_s=4.0, tensor_parallel_size=2
        )
    )
    assert scenario.search is not None
    assert set(scenario.search.space) == {"max_num_seqs", "max_num_batched_tokens"}
    assert scenario.search.objective == "sustainable_rate_per_s"
    assert scenario.engine["max_model_len"] == 1024  # the longest is 790 + 79 tokens
    assert scenario.slo is not None
    assert scenario.slo.ttft_p95 == 2.0
    assert (scenario.name, scenario.workload.arrivals.rate) == ("some-trace-l40s", 4.0)  # type: ignore[union-attr]
    kept = load_question(
        SweepQuestion(
            model="Qwen/Qwen3-8B", gpu="l40s", trace=trace, slo=["ttft_p95=2s"], overrides=["engine.max_model_len=2048"]
        )
    )
    assert kept.engine["max_model_len"] == 2048


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "--model: is missing"),
        ({"slo": []}, "--slo: is missing"),
        ({"slo": ["ttft_p95"]}, "--slo: must be NAME=DURATION"),
        ({"rate_per_s": 0.0}, "rate"),
        ({"scenario": Path("x.yaml")}, "--model: the scenario says it"),
        ({"gpu": "h1000"}, "h1000"),
    ],
)
def test_sweep_by_flags_names_what_is_missing_or_wrong(changes: dict[str, object], message: str, trace: Path) -> None:
    given: dict[str, object] = {"model": "Qwen/Qwen3-8B", "gpu": "l40s", "trace": trace, "slo": ["ttft_p95=2s"]}
    with pytest.raises((ConfigError, ScenarioError), match=re.escape(message)):
        load_question(SweepQuestion(**{**given, **changes}))  # type: ignore[arg-type]


def test_request_over_the_models_window_is_named_not_dropped(trace: Path) -> None:
    with trace.open("a", encoding="utf-8") as stream:
        stream.write("\n40,500000,10")
    with pytest.raises(ScenarioError, match="over_long"):
        load_question(SweepQuestion(model="Qwen/Qwen3-8B", gpu="l40s", trace=trace, slo=["ttft_p95=2s"]))
