"""The object M with literal numbers."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
import pytest

from workbench.metrics import Outcome, RunRecord, SloPolicy, Window, measurement_window, summarize
from workbench.metrics.records import RequestTable, StepTable
from workbench.metrics.statistics import Statistics, describe, min_samples
from workbench.scenario.slo import Slo

from .conftest import STEP_COLUMNS, row

ROWS = [
    row(0.0, 0.5, 0.6, 0.7, prompt=100, preemptions=2),
    row(1.0, 3.0, 3.5, prompt=50, scheduled_s=2.0, cached=20),
    row(2.0, 2.1, prompt=10),
    row(3.0, outcome=Outcome.FAILED, error="boom"),
    row(4.0, 4.2, 4.3, outcome=Outcome.UNFINISHED),
]


def test_summarize_counts_rates_and_attainment(make_record: Any) -> None:
    record = make_record(
        ROWS,
        steps=[(0.0, 1.0, 2, 6), (1.0, 4.0, 6, 2)],
        prefix_queried_tokens=160,
        prefix_hit_tokens=20,
    )
    policy = SloPolicy(default=Slo.model_validate({"ttft": "1s", "tpot_p90": "200ms"}))
    figures = summarize(record, policy).overall
    assert (figures.num_requests, figures.num_completed, figures.num_failed) == (5, 3, 2)
    assert figures.duration_s == 10.0
    assert figures.requests_per_s == 0.3
    assert figures.output_tokens_per_s == 0.6
    assert figures.total_tokens_per_s == 16.6
    assert figures.slo_attainment == 0.4  # rows 0 and 2 of the five issued; row 2 has no TPOT and passes
    assert figures.goodput_rps == 0.2
    assert figures.num_preemptions == 2
    assert figures.kv_usage_mean == pytest.approx((1 * 0.25 + 3 * 0.75) / 4)
    assert figures.kv_usage_max == 0.75
    assert figures.prefix_hit_rate == 0.125
    assert figures.ttft_s.num_samples == 3
    assert figures.ttft_s.mean == pytest.approx((0.5 + 2.0 + 0.1) / 3)
    assert figures.ttft_s.p50 == pytest.approx(0.5)
    assert figures.tpot_s.num_samples == 2
    assert figures.tpot_s.max == pytest.approx(0.5)
    assert figures.itl_s.num_samples == 3
    assert figures.queue_s.max == 1.0


def test_summarize_classes_have_their_own_slo_and_no_engine_wide_figures(make_record: Any) -> None:
    rows = [row(0.0, 0.5, kind=0), row(0.0, 0.5, kind=1), row(0.0, 2.5, kind=1)]
    record = make_record(rows, class_names=("a", "b"), steps=[(0.0, 1.0, 1, 1)])
    policy = SloPolicy(
        default=Slo.model_validate({"ttft": "1s"}), by_class={"a": Slo.model_validate({"ttft": "100ms"})}
    )
    summary = summarize(record, policy)
    assert summary.overall.slo_attainment == pytest.approx(1 / 3)
    assert summary.classes["a"].slo_attainment == 0.0
    assert summary.classes["b"].slo_attainment == 0.5
    assert summary.classes["b"].kv_usage_max is None
    assert [(result.limit.limit_s, result.num_issued, result.num_met) for result in summary.limits] == [
        (0.1, 1, 0),
        (1.0, 2, 1),
    ]


def test_summarize_percentile_slo_is_judged_by_its_share(make_record: Any) -> None:
    rows = [row(0.0, 0.5)] * 19 + [row(0.0, 5.0)]
    record = make_record(rows)
    at_p95 = summarize(record, SloPolicy(default=Slo.model_validate({"ttft_p95": "1s"})))
    assert at_p95.meets_slo is True
    assert at_p95.limits[0].shortfall == pytest.approx(0.0)
    assert at_p95.overall.slo_attainment == 0.95
    strict = summarize(record, SloPolicy(default=Slo.model_validate({"ttft": "1s"})))
    assert strict.meets_slo is False
    assert strict.limits[0].shortfall == pytest.approx(0.04)


def test_summarize_without_slo_has_no_attainment(make_record: Any) -> None:
    summary = summarize(make_record(ROWS))
    assert summary.overall.slo_attainment is None
    assert summary.overall.goodput_rps is None
    assert summary.meets_slo is None


def test_summarize_empty_record_is_all_absent(make_record: Any) -> None:
    figures = summarize(make_record([], duration_s=0.0), SloPolicy(default=Slo(ttft=1.0))).overall.to_dict()
    assert figures["num_requests"] == 0
    assert figures["requests_per_s"] is None
    assert figures["slo_attainment"] is None
    assert figures["ttft_s"] == {
        "mean": None, "p50": None, "p90": None, "p95": None, "p99": None, "max": None, "num_samples": 0,
    }  # fmt: skip


def test_summarize_metrics_are_the_contract(make_record: Any) -> None:
    record = make_record([*ROWS, row(5.0, outcome=Outcome.REJECTED, sent_s=math.nan, scheduled_s=math.nan)])
    figures = summarize(record).overall.to_dict()
    assert list(figures) == [
        "num_requests", "num_completed", "num_failed", "duration_s", "requests_per_s", "output_tokens_per_s",
        "total_tokens_per_s", "slo_attainment", "goodput_rps", "num_preemptions", "kv_usage_mean", "kv_usage_max",
        "prefix_hit_rate", "ttft_s", "tpot_s", "itl_s", "e2el_s", "queue_s",
    ]  # fmt: skip
    json.dumps(figures, allow_nan=False)


def test_summarize_unknown_columns_of_an_endpoint_are_absent(make_record: Any) -> None:
    rows = [row(0.0, 1.0, 2.0, scheduled_s=math.nan, preemptions=-1, cached=-1)]
    figures = summarize(make_record(rows)).overall
    assert figures.num_preemptions is None
    assert figures.prefix_hit_rate is None
    assert figures.kv_usage_mean is None
    assert figures.queue_s == Statistics()


def test_summarize_window_takes_requests_by_send_time(make_record: Any) -> None:
    record = make_record([row(float(second), second + 0.5) for second in range(10)])
    window = measurement_window(record, warm_up_s=2.0, cool_down_s=3.0)
    assert window == Window(start_s=2.0, end_s=6.0)
    figures = summarize(record, window=window).overall
    assert figures.num_requests == 5
    assert figures.requests_per_s == 1.25


def test_summarize_counts_requests_that_failed_after_the_last_token(make_record: Any) -> None:
    failed = [row(float(second), outcome=Outcome.FAILED) for second in range(2, 8)]
    figures = summarize(make_record([row(0.0, 0.5), row(1.0, 1.5), *failed], duration_s=1.5)).overall
    assert (figures.num_requests, figures.num_completed, figures.num_failed) == (8, 2, 6)


def test_measurement_window_that_leaves_nothing_is_refused(make_record: Any) -> None:
    record = make_record([row(0.0, 0.5)], duration_s=1.0)
    with pytest.raises(ValueError, match="leave nothing of a run of 1 s"):
        measurement_window(record, warm_up_s=5.0)


def test_metrics_value_by_name(make_record: Any) -> None:
    figures = summarize(make_record(ROWS)).overall
    assert figures.value("requests_per_s") == 0.3
    assert figures.value("ttft_s.max") == 2.0
    assert figures.value("goodput_rps") is None
    for name in ("nonsense", "ttft_s", "ttft_s.p42", "requests_per_s.p50"):
        with pytest.raises(KeyError):
            figures.value(name)


def test_describe_interpolates_linearly_and_ignores_absent_values() -> None:
    found = describe(np.array([4.0, np.nan, 1.0, 2.0, 3.0, np.inf]))
    assert found == Statistics(
        mean=2.5, p50=2.5, p90=3.7, p95=3.8499999999999996, p99=3.9699999999999998, max=4.0, num_samples=4
    )


def test_min_samples_of_the_common_percentiles() -> None:
    assert [min_samples(percent) for percent in (50, 90, 95, 99)] == [6, 30, 60, 300]


def test_too_few_flags_high_percentiles_first(make_record: Any) -> None:
    summary = summarize(make_record([row(0.0, 1.0, 2.0)] * 100))
    assert "ttft_s.p99" in summary.too_few
    assert "ttft_s.p95" not in summary.too_few


def test_summarize_million_requests_in_seconds() -> None:
    count, tokens = 1_000_000, 8
    rng = np.random.Generator(np.random.PCG64(0))
    arrivals = np.sort(rng.random(count) * 1000)
    zeros = np.zeros(count, dtype=np.int64)
    times = (arrivals[:, None] + np.cumsum(rng.random((count, tokens)), axis=1)).reshape(-1)
    table = RequestTable(
        request_ids=("r",) * count,
        class_names=("a", "b"),
        class_index=rng.integers(0, 2, count),
        arrival_s=arrivals,
        sent_s=arrivals,
        first_scheduled_s=arrivals,
        num_prompt_tokens=zeros,
        num_output_tokens=zeros + tokens,
        num_cached_tokens=zeros,
        num_preemptions=zeros,
        outcome=zeros,
        token_times_s=times,
        token_offsets=np.arange(count + 1) * tokens,
        num_events=zeros,
    )
    nothing = np.zeros(0, dtype=np.int64)
    steps = StepTable(start_s=np.zeros(0), end_s=np.zeros(0), admission_stop=(), **dict.fromkeys(STEP_COLUMNS, nothing))
    record = RunRecord(requests=table, steps=steps, duration_s=1010.0, clock="virtual", engine={})
    begin = time.perf_counter()
    summary = summarize(record, SloPolicy(default=Slo(ttft=0.5, tpot=0.5)))
    assert summary.overall.itl_s.num_samples == 7_000_000
    assert time.perf_counter() - begin < 20  # about 2 s on an idle machine
