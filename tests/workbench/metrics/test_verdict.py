"""Which runs may be believed."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.metrics import Expectations, Outcome, SloPolicy, Status, judge, summarize
from workbench.scenario.slo import Slo

from .conftest import row

GOOD = [row(index / 10, index / 10 + 0.5, index / 10 + 0.6) for index in range(100)]


@pytest.fixture
def verdict_of(make_record: Any) -> Any:
    def verdict(
        rows: Any, *, slo: dict[str, str] | None = None, facts: dict[str, Any] | None = None, **keys: Any
    ) -> Any:
        record = make_record(rows, **(facts or {}))
        policy = SloPolicy(default=Slo.model_validate(slo)) if slo else SloPolicy()
        return judge(record, summarize(record, policy), Expectations(**keys))

    return verdict


def codes(verdict: Any) -> list[str]:
    return [reason.code for reason in verdict.reasons]


def test_judge_ordinary_run_is_valid(verdict_of: Any) -> None:
    verdict = verdict_of(GOOD, slo={"ttft_p90": "1s"})
    assert (verdict.status, verdict.messages) == (Status.VALID, [])


def test_judge_no_requests_is_invalid(verdict_of: Any) -> None:
    assert codes(verdict_of([])) == ["no_requests"]


def test_judge_everything_failed_is_invalid_with_the_first_error(verdict_of: Any) -> None:
    verdict = verdict_of([row(0.0, outcome=Outcome.FAILED, error="connection refused")] * 3)
    assert verdict.status is Status.INVALID
    assert verdict.messages == [
        "None of 3 requests completed (3 failed, 0 unfinished). First error: connection refused"
    ]


def test_judge_some_failed_or_unfinished_is_suspect(verdict_of: Any) -> None:
    verdict = verdict_of([*GOOD, row(9.0, outcome=Outcome.REJECTED), row(9.0, outcome=Outcome.UNFINISHED)])
    assert verdict.status is Status.SUSPECT
    assert codes(verdict) == ["failures", "unfinished"]


def test_judge_late_client_is_invalid(verdict_of: Any) -> None:
    late = [row(index / 10, index / 10 + 1.5, sent_s=index / 10 + 1.0) for index in range(100)]
    verdict = verdict_of(late, slo={"ttft_p90": "2s"})
    assert verdict.status is Status.INVALID
    assert "client lag p99 1000.0 ms, allowed 100.0 ms" in verdict.messages[0]


def test_judge_late_because_of_the_cap_is_suspect(verdict_of: Any) -> None:
    late = [row(index / 10, index / 10 + 1.5, sent_s=index / 10 + 1.0) for index in range(100)]
    assert codes(verdict_of(late, has_concurrency_cap=True)) == ["client_capped"]


def test_judge_lag_of_a_timer_is_nothing(verdict_of: Any) -> None:
    rows = [row(index / 10, index / 10 + 0.01, sent_s=index / 10 + 0.002) for index in range(100)]
    assert codes(verdict_of(rows)) == []


@pytest.mark.parametrize(
    "bad",
    [row(1.0, 0.5), row(1.0, 2.0, 1.5), row(1.0, 2.0, sent_s=0.5), row(1.0, 2.0, float("inf"))],
)
def test_judge_times_that_cannot_be_are_invalid(verdict_of: Any, bad: Any) -> None:
    assert "clock" in codes(verdict_of([*GOOD, bad]))


def test_judge_backward_step_between_requests_is_no_anomaly(verdict_of: Any) -> None:
    assert codes(verdict_of([row(0.0, 5.0), row(0.1, 0.5), row(0.1), row(0.2, 0.4)])) == []


@pytest.mark.parametrize(("declared", "expected"), [(False, ["undeclared_prefix_hits"]), (True, [])])
def test_judge_prefix_hits_are_suspect_unless_declared(verdict_of: Any, declared: bool, expected: list[str]) -> None:
    facts = {"prefix_queried_tokens": 100, "prefix_hit_tokens": 90}
    assert codes(verdict_of(GOOD, facts=facts, declares_sharing=declared)) == expected


def test_judge_too_few_samples_only_where_the_statistic_decides(verdict_of: Any) -> None:
    assert codes(verdict_of(GOOD)) == []
    assert verdict_of(GOOD, statistics=("ttft_s.p99",)).messages == [
        "ttft_s.p99 rests on 100 samples; p99 needs 300. Lengthen the run"
    ]
    assert codes(verdict_of(GOOD, slo={"ttft_p99": "1s"})) == ["too_few_samples"]
    assert codes(verdict_of(GOOD, statistics=("ttft_s.mean", "ttft_s.p90"))) == []


def test_judge_refusals_by_design_are_a_result_unless_a_latency_decides(verdict_of: Any) -> None:
    rows = [*GOOD, *[row(9.0, outcome=Outcome.REJECTED, error="429: full")] * 3]

    assert verdict_of(rows, facts={"fleet": {"num_by_design": 3}}).status is Status.VALID
    assert codes(verdict_of(rows, facts={"fleet": {"num_by_design": 2}})) == ["failures"]
    lowest = verdict_of(rows, facts={"fleet": {"num_by_design": 3}}, prefers_low_latency=True)
    assert codes(lowest) == ["failures"]


def test_judge_run_in_which_most_requests_failed_is_invalid(verdict_of: Any) -> None:
    rows = [row(index / 10, outcome=Outcome.FAILED) for index in range(99)] + [row(9.9, 10.4, 10.5)]
    verdict = verdict_of(rows)
    assert (verdict.status, codes(verdict)) == (Status.INVALID, ["failures"])
