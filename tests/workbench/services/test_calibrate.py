"""Profiles made here predict runs here, and say when they do not apply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.executor.cost_model.calibrated import Adjustment
from engine.executor.cost_model.calibration_profile import CalibrationProfile, Validity, load_calibration
from engine.simulation import SimulatedDevice, with_gpu_defaults
from workbench.loadgen.designed import DesignedLoad, design_loads
from workbench.loadgen.simulated import SimulatedTarget
from workbench.metrics.definitions import ttft_s
from workbench.scenario import Scenario, ScenarioError
from workbench.services.calibrate import kind_of, save_calibration, widest_engine
from workbench.services.calibrate_machine import calibrate_machine
from workbench.services.calibrate_runs import MeasuredRun, calibrate_runs
from workbench.services.evaluate import run_scenario
from workbench.workload import generate_workload

ENGINE = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 128, "num_blocks": 65}
LOADS = [
    DesignedLoad(name=f"{users} users", concurrency=users, num_requests=users * 3, prompt=(8, 40), output=(4, 12))
    for users in (1, 2, 4)
]


@pytest.fixture(scope="module")
def profile() -> CalibrationProfile:
    config = EngineConfig.from_dict({"model": "tiny", **ENGINE})
    return calibrate_machine(config, name="here", provenance={}, num_repeats=2, loads=LOADS)


def make_scenario(path: Path | None, *, gpu: str | None = None, users: int = 3, model: str = "tiny") -> Scenario:
    return Scenario.model_validate(
        {
            "name": "s",
            "model": model,
            "engine": ENGINE if gpu is None else {"max_model_len": 2048},
            "target": {"kind": "simulated", "profile": path, "gpu": gpu},
            "workload": {
                "num_requests": 12,
                "arrivals": {"kind": "closed_loop", "concurrency": users},
                "classes": [{"name": "c", "input_tokens": 30, "output_tokens": 10}],
            },
        }
    )


def test_machine_profile_runs_a_scenario_and_names_itself(profile: CalibrationProfile, tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    save_calibration(profile, path)
    result = run_scenario(make_scenario(path))
    stated = result.record.engine["profile"]
    assert (stated["name"], stated["kind"], stated["outside"]) == ("here", "machine", [])
    assert result.record.engine["num_blocks"] == 65
    assert any("predicted with profile here" in note for note in result.record.notes)
    assert {"decode", "mixed", "prefill", "repeat"} & set(stated["error"])


def test_run_outside_the_measured_range_is_suspect(profile: CalibrationProfile, tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    save_calibration(replace(profile, validity=Validity(max_num_seqs=2)), path)
    result = run_scenario(make_scenario(path))
    assert "3 sequences in a step, but at most 2 when the profile was made" in "".join(result.verdict.messages)


def test_profile_of_another_model_or_with_a_gpu_is_refused(profile: CalibrationProfile, tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    save_calibration(profile, path)
    with pytest.raises(ConfigError, match="was made with model tiny, the scenario has small"):
        run_scenario(make_scenario(path, model="small"))
    with pytest.raises(ConfigError, match=r"target\.gpu: does not go with profile here"):
        run_scenario(make_scenario(path, gpu="a100-80g-sxm"))


def test_runs_that_are_slower_than_the_catalogue_give_factors_over_one() -> None:
    scenario = make_scenario(None, gpu="a100-80g-sxm", model="Llama-3.1-8B")
    record = run_scenario(scenario).record
    table = record.requests
    slow = replace(
        table,
        token_times_s=table.token_times_s * 1.5,
        arrival_s=table.arrival_s * 1.5,
        sent_s=table.sent_s * 1.5,
        first_scheduled_s=table.first_scheduled_s * 1.5,
    )
    run = MeasuredRun(scenario=scenario, seed=scenario.seed, record=replace(record, requests=slow))
    found = calibrate_runs([run], gpu="a100-80g-sxm", model=None, tensor_parallel_size=1, name="slow", provenance={})
    assert found.adjustment is not None
    assert found.adjustment.decode_factor > 1.1
    assert found.errors["tpot"]["median"] < 0.1


def served(users: int, num: int, model: str, truth: CalibrationProfile, gpu: str = "l40s") -> MeasuredRun:
    """A run of a server that behaves as `truth` says."""
    scenario = Scenario.model_validate(
        {
            "name": f"{users} users",
            "seed": users,
            "model": model,
            "target": {"kind": "endpoint", "url": "http://127.0.0.1:1"},
            "workload": {
                "num_requests": num,
                "arrivals": {"kind": "closed_loop", "concurrency": users},
                "classes": [
                    {"name": "short", "input_tokens": {"kind": "uniform", "low": 32, "high": 256}, "output_tokens": 32},
                    {
                        "name": "long",
                        "input_tokens": {"kind": "uniform", "low": 400, "high": 1200},
                        "output_tokens": 24,
                    },
                ],
            },
        }
    )
    device = SimulatedDevice.of(gpu)
    target = SimulatedTarget(EngineConfig.from_dict(with_gpu_defaults({"model": model}, device.gpu)), device, truth)
    workload = generate_workload(scenario, target.limits, seed=scenario.seed)
    return MeasuredRun(scenario=scenario, seed=scenario.seed, record=target.run(workload))


@pytest.mark.parametrize(("delay_s", "prefill"), [(0.05, 1.0), (0.2, 1.0), (0.05, 1.3), (0.0, 1.0)])
def test_gateway_is_a_constant_per_request_and_no_slower_gpu(delay_s: float, prefill: float, tmp_path: Path) -> None:
    truth = CalibrationProfile(
        kind="adjusted", name="t", adjustment=Adjustment(prefill_factor=prefill), request_s=0.003, delay_s=delay_s
    )
    runs = [served(users, num, "Qwen/Qwen3-8B", truth) for users, num in ((1, 12), (8, 24))]
    found = calibrate_runs(runs, gpu="l40s", model=None, tensor_parallel_size=1, name="x", provenance={})
    assert found.adjustment is not None
    assert found.delay_s == pytest.approx(delay_s, abs=0.004)
    assert found.adjustment.prefill_factor == pytest.approx(prefill, rel=0.06)
    assert found.adjustment.decode_factor == pytest.approx(1.0, rel=0.06)
    save_calibration(found, tmp_path / "x.json")
    assert load_calibration(tmp_path / "x.json").delay_s == found.delay_s


def test_delay_of_a_profile_is_in_the_first_token_at_every_prompt_length() -> None:
    def first_s(delay_s: float) -> tuple[float, float]:
        truth = CalibrationProfile(kind="adjusted", name="t", adjustment=Adjustment(), request_s=0.003, delay_s=delay_s)
        record = served(1, 12, "Qwen/Qwen3-8B", truth).record
        values, lengths = ttft_s(record.requests), record.requests.num_prompt_tokens
        return float(values[lengths.argmin()]), float(values[lengths.argmax()])

    with_it, without = first_s(0.05), first_s(0.0)
    assert [a - b for a, b in zip(with_it, without, strict=True)] == pytest.approx([0.05, 0.05], abs=1e-9)


def test_no_usable_run_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="no run has two requests"):
        calibrate_runs([], gpu="a100", model=None, tensor_parallel_size=1, name="x", provenance={})


def test_sources_are_told_apart(tmp_path: Path) -> None:
    assert kind_of("tiny") == "machine"
    (tmp_path / "gemm_x.csv").touch()
    assert kind_of(str(tmp_path)) == "operators"
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.json").touch()
    assert kind_of(str(tmp_path / "runs")) == "adjusted"


def test_engine_is_timed_up_to_the_ends_of_the_search_space() -> None:
    search = {"objective": "output_tokens_per_s", "space": {"max_num_seqs": {"low": 2, "high": 48}}, "trials": 3}
    scenario = Scenario.model_validate({**make_scenario(None, gpu="a100").model_dump(), "search": search})
    assert widest_engine(scenario).scheduler.max_num_seqs == 48


def test_designed_loads_stay_within_the_engine() -> None:
    loads = design_loads(max_num_seqs=20, max_num_batched_tokens=256, max_model_len=300, num_kv_tokens=4000)
    assert {load.concurrency for load in loads} >= {1, 2, 4, 8, 20}
    assert all(load.concurrency <= 20 for load in loads)
    assert all(load.prompt[1] + load.output[1] <= 300 for load in loads)
