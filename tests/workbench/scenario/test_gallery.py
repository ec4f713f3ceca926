"""Every scenario of the gallery is valid, teaches something, and runs on a simulated GPU in a moment."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from workbench.scenario import Scenario, load_scenario
from workbench.services.evaluate import RunResult, run_scenario

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
ON_THE_WALL_CLOCK = ("azure-chat", "mixed-long-short", "quickstart", "smollm2-chat")
"""For the embedded engine; they have tests of their own."""
GALLERY = sorted(path.stem for path in SCENARIOS.glob("*.yaml") if path.stem not in ON_THE_WALL_CLOCK)


@cache
def simulated(name: str, *overrides: str) -> RunResult:
    return run_scenario(load_scenario(SCENARIOS / f"{name}.yaml", overrides))


def test_gallery_answers_the_questions_of_a_deployer() -> None:
    assert set(GALLERY) >= {
        "short-qa",
        "medium",
        "long-document",
        "chat-system-prompt",
        "rag-document-front",
        "rag-document-behind",
        "multi-turn",
        "agentic",
        "burst",
        "ramp-to-saturation",
        "offline-batch",
        "code-completion",
        "reasoning",
        "fleet-rush",
        "fleet-prefill-decode",
        "pitfall-max-model-len",
        "pitfall-default-budget-ten-users",
        "pitfall-varying-header",
        "pitfall-long-starves-short",
    }


@pytest.mark.parametrize("name", GALLERY)
def test_gallery_scenario_is_valid_and_simulates(name: str) -> None:
    result = simulated(name)
    overall = result.summary.overall
    assert result.scenario.target.kind == "simulated"
    assert overall.num_completed == overall.num_requests > 0
    assert result.verdict.status.value != "INVALID"
    assert len(result.workload) < 1000


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_gallery_file_says_what_to_learn(path: Path) -> None:
    comment = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert 2 <= len(comment) <= 4
    assert "Learn" in " ".join(comment)


def test_gallery_mixed_long_short_simulates_on_a_gpu() -> None:
    target = "target={kind: simulated, gpu: a100-80g-sxm}"
    result = simulated("mixed-long-short", target, "model=Qwen/Qwen2.5-7B-Instruct", "engine.device_memory=null")
    assert {name: metrics.num_completed for name, metrics in result.summary.classes.items()} == {
        "short": 800,
        "medium": 150,
        "long": 50,
    }


def hit_rate(name: str) -> float:
    return simulated(name).summary.overall.prefix_hit_rate or 0.0


def test_gallery_prefix_in_front_hits_and_behind_a_header_does_not() -> None:
    assert hit_rate("chat-system-prompt") > 0.8
    assert hit_rate("pitfall-varying-header") == 0
    assert hit_rate("rag-document-front") > 0.5
    assert hit_rate("rag-document-behind") == 0


def test_gallery_growing_history_hits() -> None:
    assert hit_rate("multi-turn") > 0.6
    assert hit_rate("agentic") > 0.8


def ttft_p95(name: str, *overrides: str, kind: str | None = None) -> float:
    summary = simulated(name, *overrides).summary
    value = (summary.overall if kind is None else summary.classes[kind]).ttft_s.p95
    assert value is not None
    return value


def test_gallery_pitfalls_show_what_they_promise() -> None:
    assert ttft_p95("pitfall-max-model-len") > 3 * ttft_p95("pitfall-max-model-len", "engine.max_model_len=2048")
    alone = ttft_p95("pitfall-default-budget-ten-users", "workload.arrivals.concurrency=1")
    assert ttft_p95("pitfall-default-budget-ten-users") > 4 * alone
    starved = ttft_p95("pitfall-long-starves-short", kind="short")
    assert starved > 5
    assert ttft_p95("pitfall-long-starves-short", "engine.max_num_seqs=64", kind="short") < 0.5


def test_gallery_fleets_show_what_they_promise() -> None:
    scaled = simulated("fleet-rush").record.fleet
    three = simulated("fleet-rush", "target.autoscaling.min_replicas=3").record.fleet
    assert scaled is not None
    assert three is not None
    assert scaled["most_replicas"] == 6
    assert three["replica_seconds"] < scaled["replica_seconds"]
    assert 3 * ttft_p95("fleet-rush", "target.autoscaling.min_replicas=3") < ttft_p95("fleet-rush")
    together = ("target.pools=[]", "target.link=null", "target.replicas=4")
    mixed = simulated("fleet-prefill-decode", *together).summary.overall.itl_s.p99
    apart = simulated("fleet-prefill-decode").summary.overall.itl_s.p99
    assert mixed is not None
    assert apart is not None
    assert 5 * apart < mixed


def test_gallery_runs_are_deterministic() -> None:
    scenario: Scenario = load_scenario(SCENARIOS / "multi-turn.yaml")
    one, other = run_scenario(scenario), run_scenario(scenario)
    assert one.workload.fingerprint == other.workload.fingerprint
    assert one.record.decision_fingerprint == other.record.decision_fingerprint
