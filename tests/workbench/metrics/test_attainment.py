"""Limits on gaps and means, beside those on single requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.workbench.metrics.conftest import row
from workbench.metrics.attainment import LimitResult, SloPolicy, good_requests, limit_results
from workbench.metrics.records import Outcome, RequestTable
from workbench.scenario.slo import Slo

MakeTable = Callable[..., RequestTable]
ROWS = [
    row(0.0, 0.10, 0.12, 0.14, 0.50),  # gaps 20, 20, 360 ms
    row(1.0, 1.30, 1.32),  # gap 20 ms
    row(2.0, 2.20),  # no gap
    row(3.0, 3.05, 3.07, outcome=Outcome.FAILED, error="gone"),
]


def result_of(table: RequestTable, **limits: Any) -> LimitResult:
    policy = SloPolicy(default=Slo.model_validate(limits))
    (found,) = limit_results(table, policy, np.ones(len(table), dtype=np.bool_))
    return found


def good(table: RequestTable, **limits: Any) -> Sequence[bool]:
    return good_requests(table, SloPolicy(default=Slo.model_validate(limits))).tolist()


def test_itl_limit_counts_gaps_and_a_failed_request_as_one_that_missed(make_table: MakeTable) -> None:
    found = result_of(make_table(ROWS), itl_p50="30ms")
    assert (found.num_met, found.num_issued) == (3, 5)
    assert found.is_met


def test_itl_limit_binds_a_request_in_the_share_of_its_own_gaps(make_table: MakeTable) -> None:
    table = make_table(ROWS)
    assert good(table, itl="30ms") == [False, True, True, False]
    assert good(table, itl_p50="30ms") == [True, True, True, False]


def test_mean_limit_is_judged_by_the_mean_and_binds_no_request(make_table: MakeTable) -> None:
    table = make_table(ROWS)
    found = result_of(table, ttft_mean="100ms")  # 100, 300 and 200 ms
    assert found.mean_s == pytest.approx(0.2)
    assert found.fraction == pytest.approx(0.5)
    assert found.shortfall == pytest.approx(0.5)
    assert not found.is_met
    assert result_of(table, ttft_mean="200.001ms").is_met
    assert good(table, ttft_mean="100ms") == [True, True, True, False]


def test_max_limit_is_broken_by_one_request(make_table: MakeTable) -> None:
    assert not result_of(make_table(ROWS[:3]), ttft_max="250ms").is_met
    assert result_of(make_table(ROWS[:3]), ttft_max="300.001ms").is_met
