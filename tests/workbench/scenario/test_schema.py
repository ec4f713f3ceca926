"""Rules between keys, and what a scenario says about itself."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from engine.errors import ConfigError
from workbench.scenario import Scenario, engine_spec, parse_scenario, scenario_to_dict
from workbench.scenario.search import Dimension
from workbench.scenario.slo import Slo, SloLimit


def test_scenario_round_trips_through_plain_data(good_text: str) -> None:
    scenario = parse_scenario(good_text)
    assert Scenario.model_validate(scenario_to_dict(scenario)) == scenario


def test_scenario_is_frozen(good_text: str) -> None:
    with pytest.raises(ValidationError):
        parse_scenario(good_text).seed = 2  # type: ignore[misc]


def test_engine_spec_takes_model_engine_section_and_changes(good_text: str) -> None:
    config = engine_spec(parse_scenario(good_text), block_size=32)
    assert (config.model.model, config.scheduler.max_num_seqs, config.cache.block_size) == ("tiny", 64, 32)


def test_engine_spec_changes_that_clash_raise_config_error(good_text: str) -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        engine_spec(parse_scenario(good_text), max_num_batched_tokens=8)


def test_slo_limits_have_metric_percent_and_seconds() -> None:
    slo = Slo.model_validate({"ttft": "500ms", "ttft_p95": "2s", "tpot_p99": 0.05, "e2el": "1.5 min"})
    assert slo.limits == (
        SloLimit(name="ttft", metric="ttft_s", limit_s=0.5, percent=None),
        SloLimit(name="ttft_p95", metric="ttft_s", limit_s=2.0, percent=95.0),
        SloLimit(name="tpot_p99", metric="tpot_s", limit_s=0.05, percent=99.0),
        SloLimit(name="e2el", metric="e2el_s", limit_s=90.0, percent=None),
    )
    assert [limit.required_fraction(0.9) for limit in slo.limits] == [0.9, 0.95, 0.99, 0.9]


def test_slo_of_class_prefers_its_own(good_text: str) -> None:
    scenario = parse_scenario(good_text, overrides=("workload.classes.long.slo={ttft: 9s}",))
    own, common = scenario.slo_of("long"), scenario.slo_of("short")
    assert own is not None
    assert own.ttft == 9.0
    assert common is scenario.slo


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("workload.classes.0.count=5", "excludes weight"),
        ("workload.classes.1.count=5", "workload.classes.0.count: is missing: other classes have a count"),
        ("workload.classes=[]", "must name at least one class"),
        ("workload.arrivals={kind: closed_loop, concurrency: 0}", "concurrency: must be at least 1"),
        (
            "workload.arrivals={kind: ramp, start_rate: 0, end_rate: 0, duration: 1s}",
            "must be over 0 when start_rate is 0",
        ),
        ("workload.arrivals={kind: stages, stages: []}", "must not be empty"),
        ("workload.arrivals={kind: stages, stages: [{rate: 0, duration: 1s}]}", "must have a rate over 0 somewhere"),
        ("workload.arrivals={kind: trace, path: ., format: csv}", "goes with format: csv"),
        ("workload.classes.0.input_tokens={kind: empirical}", "needs either values or path"),
        ("workload.classes.0.input_tokens={kind: empirical, values: [1], weights: [0]}", "must not sum to 0"),
        ("workload.classes.0.input_tokens={kind: empirical, values: [1], weights: [1, 2]}", "one per value"),
        ("workload.classes.0.input_tokens={kind: uniform, low: 4, high: 3}", "must be at least low (4, got 3)"),
        ("workload.classes.0.input_tokens={kind: zipf, exponent: 1, low: 4, high: 3}", "must be at least low"),
        ("workload.classes.0.input_tokens={kind: normal, mean: 4, std: 1, min: 9, max: 3}", "must be at least min"),
        ("workload.classes.0.input_tokens={percentiles: {p50: 3}}", "needs at least two"),
        ("workload.classes.0.input_tokens={kind: lognormal, percentiles: {p50: 3}}", "exactly two"),
        ("workload.classes.0.name='a/b'", "must be a name without slash"),
        ("search.space={}", "must not be empty"),
        ("search.space={replcas: {low: 1, high: 2}}", "did you mean 'replicas'"),
        ("search.space.replicas={low: 0, high: 2}", "must be greater than or equal to 1"),
        ("search.space.quantization={choices: [fp4]}", "must be 'fp8', 'int8' or 'int4'"),
        ("search.space.block_size={choices: [1], low: 2}", "excludes low, high"),
        ("search.space.block_size={low: 1}", "is missing: give low and high"),
        ("search.space.max_num_batched_tokens={low: 1, high: 2}", "must reach max_num_seqs somewhere"),
    ],
)
def test_rules_between_keys_are_checked(refusal: Any, override: str, expected: str) -> None:
    assert expected in refusal(overrides=(override,))


def test_counts_replace_num_requests(good_text: str) -> None:
    text = good_text.replace("weight: 3", "count: 3").replace("name: long", "name: long\n      count: 2")
    with pytest.raises(ValueError, match="must equal the sum"):
        parse_scenario(text)
    assert parse_scenario(text.replace("  num_requests: 10\n", "")).workload.num_requests is None


def test_all_at_once_needs_num_requests(refusal: Any) -> None:
    message = refusal(("num_requests: 10", "duration: 5s"), ("{kind: poisson, rate: 4}", "{kind: all_at_once}"))
    assert "num_requests: is missing: arrivals all_at_once does not end by itself" in message


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"low": 4, "high": 64}, (True, 4, 64)),
        ({"low": 0.5, "high": 1}, (False, 0.5, 1)),
        ({"choices": [8, 16]}, (False, 8, 16)),
        ({"choices": ["fcfs", "priority"]}, (False, None, None)),
    ],
)
def test_dimension_knows_its_ends(values: dict[str, Any], expected: tuple[bool, Any, Any]) -> None:
    dimension = Dimension.model_validate(values)
    assert (dimension.is_integer, dimension.smallest, dimension.largest) == expected


def test_slo_binds_any_statistic_of_any_latency() -> None:
    slo = Slo.model_validate({"itl_p99.9": "80ms", "queue_p90": 1, "ttft_max": 5, "e2el_per_token_mean": "50ms"})
    found = {limit.name: (limit.metric, limit.limit_s, limit.percent, limit.is_mean) for limit in slo.limits}
    assert found == {
        "itl_p99.9": ("itl_s", 0.08, 99.9, False),
        "queue_p90": ("queue_s", 1.0, 90.0, False),
        "ttft_max": ("ttft_s", 5.0, 100.0, False),
        "e2el_per_token_mean": ("e2el_per_token_s", 0.05, None, True),
    }


@pytest.mark.parametrize("name", ["ttft_p100", "ttft_p0", "itl_min", "throughput", "ttft_p95_p99"])
def test_slo_of_an_unknown_statistic_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="unknown key"):
        Slo.model_validate({name: 1})


CLASS = "{name: c, input_tokens: 5, output_tokens: 2}"
SIMULATED = f"name: s\nworkload: {{num_requests: 4, arrivals: {{kind: all_at_once}}, classes: [{CLASS}]}}\n"


def test_spellings_of_one_gpu_are_one_category() -> None:
    text = (
        f"{SIMULATED}target: {{kind: simulated, gpu: NVIDIA A100-SXM4-80GB}}\n"
        "search: {space: {gpu: {choices: [A100-80GB, a100-80g-sxm, H100, l40s]}}}\n"
    )
    scenario = parse_scenario(text)

    assert scenario.search is not None
    assert scenario.target.gpu == "a100-80g-sxm"  # type: ignore[union-attr]
    assert scenario.search.space["gpu"].choices == ("a100-80g-sxm", "h100-80g-sxm", "l40s-48g")


@pytest.mark.parametrize(
    ("model", "target", "weights"),
    [
        ("Qwen3-8B-FP8-dynamic", "", "fp8"),
        ("Qwen3-8B", "", None),
        ("Qwen3-8B", ", quantization: int4", "int4"),
        ("Qwen3-8B-FP8", ", quantization: null", None),
    ],
)
def test_simulated_target_takes_the_weights_that_its_model_states(model: str, target: str, weights: str | None) -> None:
    scenario = parse_scenario(f"{SIMULATED}model: {model}\ntarget: {{kind: simulated, gpu: h100{target}}}\n")

    assert scenario.target.quantization == weights  # type: ignore[union-attr]
    assert Scenario.model_validate(scenario_to_dict(scenario)) == scenario


@pytest.mark.parametrize(("name", "value"), [("ttft_p95", 2000), ("ttft", "60"), ("tpot_p90", 50), ("itl_p99", 1)])
def test_slo_without_a_unit_that_can_only_be_milliseconds_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=rf"has no unit \(got {value}\). Write {value}ms"):
        Slo.model_validate({name: value})


def test_slo_of_a_long_limit_is_questioned_and_can_be_written_and_read_again() -> None:
    slo = Slo.model_validate({"ttft_p95": "90s", "tpot_p95": "2s", "e2el_p99": "5min"})
    assert [text.partition(":")[0] for text in slo.doubts] == ["slo.ttft_p95 is 90 s", "slo.tpot_p95 is 2 s"]
    assert Slo.model_validate(slo.model_dump(mode="json")) == slo


def test_slo_with_statistic_and_metric_swapped_suggests_the_name() -> None:
    with pytest.raises(ValidationError, match="Did you mean 'ttft_p95'"):
        Slo.model_validate({"p95_ttft": "2s"})
