"""Two runs or studies side by side: what differs, and whether chance explains it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workbench.scenario import Scenario, ScenarioError
from workbench.scenario.export import scenario_to_dict
from workbench.services.compare import Comparison, Difference, compare
from workbench.services.evaluate import run_scenario, store_run
from workbench.services.listing import list_stored
from workbench.store.studies import save_study


def scenario(seed: int = 1, rate: float = 6.0) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "chat",
            "seed": seed,
            "model": "Qwen2.5-7B-Instruct",
            "engine": {"max_model_len": 4096},
            "target": {"kind": "simulated", "gpu": "a100-80g-sxm", "tensor_parallel_size": 2},
            "workload": {
                "num_requests": 200,
                "arrivals": {"kind": "poisson", "rate": rate},
                "classes": [{"name": "c", "input_tokens": 400, "output_tokens": 60}],
            },
            "slo": {"ttft_p95": "1s"},
        }
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `wide`, `again` (the same), `narrow` (8 at once), `other` (another seed); studies `one`, `two`."""
    folder = tmp_path_factory.mktemp("store")
    wide = run_scenario(scenario(), {})
    narrow = run_scenario(scenario(), {"max_num_seqs": 2})
    for name, result in (("wide", wide), ("again", wide), ("narrow", narrow), ("other", run_scenario(scenario(2), {}))):
        store_run(folder / "runs" / name, result)
    for name, result, repeats in (("one", wide, [10.0, 10.2, 9.9]), ("two", narrow, [12.0, 12.3, 12.1])):
        store_run(folder / name / "trial-0001", result)
        (folder / name / "artifacts").mkdir()
        save_study(folder / name, study(result, name, repeats))
    return folder


def study(result: Any, name: str, repeats: list[float]) -> dict[str, Any]:
    metrics = result.summary.overall.to_dict()
    trial = {"number": 1, "state": "COMPLETE", "params": dict(result.params), "metrics": metrics, "verdict": "VALID"}
    return {
        "study": name,
        "scenario": "chat",
        "objective": "sustainable_rate_per_s",
        "trials": [trial | {"objective": repeats[0], "duplicate_of": None}],
        "best": {"number": 1, "params": dict(result.params), "metrics": metrics},
        "gain": {"value": 0.12, "low": 0.08, "high": 0.15},
        "repeats": {"default": [9.0, 9.1, 9.2], "best": repeats},
        "conclusion": f"The conclusion of {name}.",
        "scenario_resolved": scenario_to_dict(result.scenario),
    }


def figure(found: Comparison, name: str) -> Difference:
    return next(each for each in found.metrics if each.name == name)


def test_runs_that_differ_in_one_parameter_show_that_one_and_the_slower_side(store: Path) -> None:
    found = compare(store / "runs/wide", store / "runs/narrow")
    assert ("engine.max_num_seqs", 256, 2) in found.parameters
    assert {name for name, _, _ in found.parameters} <= {"engine.max_num_seqs", "engine.max_num_active_seqs",
                                                         "engine.num_blocks"}  # fmt: skip
    ttft = figure(found, "ttft_s.p95")
    assert ttft.better == "A"
    assert ttft.low is not None
    assert ttft.relative is not None
    assert 0 < ttft.low <= ttft.relative
    assert ttft.a is not None
    assert ttft.b == pytest.approx(ttft.a * (1 + ttft.relative))


def test_equal_runs_differ_in_nothing(store: Path) -> None:
    found = compare(store / "runs/wide", store / "runs/again")
    assert found.parameters == ()
    assert {each.better for each in found.metrics} == {None}
    assert {each.relative for each in found.metrics if each.a} == {0.0}


def test_other_requests_are_said_and_seeds_alone_win_nothing(store: Path) -> None:
    found = compare(store / "runs/wide", store / "runs/other")
    assert any("the requests or their times differ" in note for note in found.notes)
    assert figure(found, "requests_per_s").better is None


def test_studies_are_compared_by_their_winners_and_repeats(store: Path) -> None:
    found = compare(store / "one", store / "two")
    rate = figure(found, "sustainable_rate_per_s")
    assert (rate.a, rate.b, rate.better) == (10.0, 12.0, "B")
    assert rate.low is not None
    assert rate.high is not None
    # Welch by hand on the logarithms: center 0.190, standard error 0.0114, 3.86 degrees of freedom
    assert (rate.low, rate.high) == pytest.approx((0.171, 0.249), abs=0.001)
    assert found.a.conclusion == "The conclusion of one."


def test_run_is_compared_with_a_study(store: Path) -> None:
    found = compare(store / "runs/wide", store / "two")
    assert (found.a.kind, found.b.kind, found.b.trial) == ("run", "study", 1)
    assert figure(found, "ttft_s.p95").better == "A"


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="neither a run nor a study"):
        compare(tmp_path, tmp_path)


def test_listing_names_model_gpu_and_result_of_what_is_stored(store: Path) -> None:
    (store / "plan.yaml").write_text(
        "deployment: {model: Qwen/Qwen3-8B, gpu: l40s, replicas: 3}\nreplicas: {minimum: 3}\n", encoding="utf-8"
    )
    (store / "scenario.yaml").write_text("name: not a plan\n", encoding="utf-8")
    found = {(each.kind, each.name): each for each in list_stored(store)}
    assert set(found) == {
        ("study", "one"), ("study", "two"), ("run", "wide"), ("run", "again"), ("run", "narrow"), ("run", "other"),
        ("plan", "plan.yaml"),
    }  # fmt: skip
    one = found["study", "one"]
    assert (one.model, one.gpu) == ("Qwen2.5-7B-Instruct", "2 x a100-80g-sxm")
    assert one.result == "1 trials, trial 1 is the best: Sustainable rate +12.0 % (+8.0 % to +15.0 %)"
    assert str(found["run", "wide"].result).endswith("SLO attainment 100.0 %")
    assert found["plan", "plan.yaml"].result == "3 replicas"


def test_listing_says_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "runs/broken").mkdir(parents=True)
    (tmp_path / "runs/broken/run.json").write_text("{", encoding="utf-8")
    (tmp_path / "plots").mkdir()
    (found,) = list_stored(tmp_path)
    assert found.problem is not None
    with pytest.raises(ScenarioError, match="is not a folder"):
        list_stored(tmp_path / "nowhere")
