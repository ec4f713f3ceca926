"""Other tools' definitions, on requests whose figures can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.metrics.attainment import SloPolicy
from workbench.metrics.dialects import DIALECTS, Report, aiperf, guidellm, inference_perf, vllm
from workbench.metrics.distributions import Distribution, stepwise, with_failures
from workbench.metrics.records import Outcome, RunRecord
from workbench.scenario.slo import Slo

from .conftest import row

MakeRecord = Callable[..., RunRecord]

TWO = [row(0.0, *[0.5 + 0.02 * k for k in range(10)]), row(0.0, 0.5, 0.58)]
"""TTFT 500 ms each; one has 9 gaps of 20 ms, the other one of 80 ms."""
ONE_TOKEN = row(0.0, 0.1)
FAILED = row(0.0, outcome=Outcome.FAILED, error="no")


def mean(report: Report, name: str) -> float:
    value = report[name].value
    assert isinstance(value, Distribution)
    assert value.mean is not None
    return value.mean


def test_two_requests_have_the_tpot_of_each_tool(make_record: MakeRecord) -> None:
    record = make_record(TWO)
    assert mean(vllm(record), "tpot_ms") == pytest.approx(50.0)
    assert mean(guidellm(record), "time_per_output_token_ms") == pytest.approx(105.0)
    assert mean(inference_perf(record), "time_per_output_token_ms") == pytest.approx(50.0)
    assert mean(inference_perf(record), "normalized_time_per_output_token_ms") == pytest.approx((68.0 + 290.0) / 2)


def test_two_requests_have_the_itl_of_each_tool(make_record: MakeRecord) -> None:
    record = make_record(TWO)
    assert mean(vllm(record), "itl_ms") == pytest.approx(26.0)
    assert mean(guidellm(record), "inter_token_latency_ms") == pytest.approx(26.0)
    assert mean(aiperf(record), "inter_token_latency_ms") == pytest.approx(50.0)
    assert mean(aiperf(record), "inter_chunk_latency_ms") == pytest.approx(26.0)
    assert mean(inference_perf(record), "inter_token_latency_ms") == pytest.approx(26.0)


def test_equal_means_have_other_percentiles(make_record: MakeRecord) -> None:
    record = make_record(TWO)
    pooled, weighted = vllm(record)["itl_ms"].to_json(), guidellm(record)["inter_token_latency_ms"].to_json()
    assert (pooled["p95"], weighted["p95"]) == (pytest.approx(53.0), pytest.approx(80.0))
    assert (pooled["num_samples"], weighted["num_samples"]) == (10, 2)


def test_clock_starts_when_the_request_was_sent_and_late_sending_shows_apart(make_record: MakeRecord) -> None:
    record = make_record([row(0.0, 1.0, 1.2, sent_s=0.4)])
    assert mean(vllm(record), "ttft_ms") == pytest.approx(600.0)
    assert mean(vllm(record), "e2el_ms") == pytest.approx(800.0)
    assert mean(aiperf(record), "effective_latency_ms") == pytest.approx(1200.0)
    assert mean(inference_perf(record), "schedule_delay_ms") == pytest.approx(400.0)


def test_chunk_of_several_tokens_is_one_gap_to_some_and_zeros_to_others(make_record: MakeRecord) -> None:
    record = make_record([row(0.0, 0.1, 0.2, 0.2, 0.2)])
    record.requests.num_events[0] = 2
    assert vllm(record)["itl_ms"].to_json()["num_samples"] == 1
    assert mean(vllm(record), "itl_ms") == pytest.approx(100.0)
    assert mean(vllm(record), "tpot_ms") == pytest.approx(100.0 / 3)
    assert inference_perf(record)["inter_token_latency_ms"].to_json()["num_samples"] == 3
    assert mean(inference_perf(record), "inter_token_latency_ms") == pytest.approx(100.0 / 3)


def test_answer_of_one_token_has_no_ttft_in_inference_perf(make_record: MakeRecord) -> None:
    record = make_record([ONE_TOKEN, *TWO])
    assert inference_perf(record)["time_to_first_token_ms"].to_json()["num_samples"] == 2
    assert vllm(record)["ttft_ms"].to_json()["num_samples"] == 3


def test_one_token_and_a_failure_against_a_tpot_limit_as_each_tool_judges(make_record: MakeRecord) -> None:
    """Four requests: one good, one over the limit, one of a single token, one failed."""
    record = make_record([*TWO, ONE_TOKEN, FAILED])
    slo = SloPolicy(default=Slo(tpot=0.05))
    duration_s = 0.68
    assert vllm(record, slo)["request_goodput"].value == pytest.approx(2 / duration_s)
    assert guidellm(record, slo)["goodput_fraction"].value == pytest.approx(1 / 3)
    assert aiperf(record, slo)["goodput"].value == pytest.approx(1 / duration_s)
    assert aiperf(record, slo)["good_request_fraction"].value == pytest.approx(1 / 4)
    assert inference_perf(record, slo)["goodput_percent"].value == pytest.approx(100 / 3)


def test_vllm_throughput_counts_completed_requests_over_the_whole_run(make_record: MakeRecord) -> None:
    record = make_record([row(1.0, 2.0, 3.0), row(1.0, 5.0, outcome=Outcome.UNFINISHED)])
    report = vllm(record)
    assert report["duration_s"].value == pytest.approx(4.0)
    assert report["output_throughput"].value == pytest.approx(0.5)
    assert report["total_token_throughput"].value == pytest.approx(3.0)
    assert report["request_goodput"].value is None


def test_aiperf_adjusted_latency_puts_failures_at_infinity(make_record: MakeRecord) -> None:
    adjusted = aiperf(make_record([*TWO, FAILED]))["adj_request_latency_ms"].to_json()
    assert (adjusted["p50"], adjusted["p99"], adjusted["num_samples"]) == (pytest.approx(680.0), None, 3)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("rows", [[], [FAILED]])
def test_run_without_an_answer_has_no_latencies_and_no_rates(
    name: str, rows: list[dict[str, Any]], make_record: MakeRecord
) -> None:
    report = DIALECTS[name](make_record(rows), SloPolicy(default=Slo(ttft=1.0)))
    for key, figure in report.items():
        value = figure.to_json()
        if isinstance(value, dict):
            assert value.pop("num_samples") == 0, key
            assert set(value.values()) == {None}, key
        elif key not in ("num_requests", "num_completed"):
            assert not value, key


@pytest.mark.parametrize("name", DIALECTS)
def test_latencies_of_tools_never_contain_failed_requests(name: str, make_record: MakeRecord) -> None:
    slow_failure = row(0.0, 90.0, 99.0, outcome=Outcome.FAILED)
    report = DIALECTS[name](make_record([*TWO, slow_failure]))
    for key, figure in report.items():
        value = figure.to_json()
        if isinstance(value, dict) and value["mean"] is not None:
            assert value["mean"] < 1000.0, key


def test_stepwise_percentile_is_a_value_that_occurred() -> None:
    found = stepwise(np.array([3.0, 1.0, 2.0]), np.array([1.0, 8.0, 1.0]))
    assert (found.mean, found.p50, found.p90, found.p95) == (1.3, 1.0, 2.0, 3.0)


def test_percentile_with_failures_takes_the_nearest_order_statistic() -> None:
    assert with_failures(np.array([1.0, 2.0, 3.0]), 0).p50 == 2.0
    assert with_failures(np.array([1.0, 2.0]), 8).p50 is None


def test_request_is_judged_by_the_slo_of_its_class(make_record: MakeRecord) -> None:
    rows = [row(0.0, 0.5, 0.6, kind=0), row(0.0, 0.5, 0.6, kind=1)]
    record = make_record(rows, class_names=("chat", "batch"))
    slo = SloPolicy(default=Slo(ttft=0.1), by_class={"batch": Slo(ttft=9.0)})
    assert aiperf(record, slo)["good_request_fraction"].value == pytest.approx(0.5)
