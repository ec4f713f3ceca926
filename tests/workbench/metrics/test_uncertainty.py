"""Intervals: they cover, they are repeatable, and they say when nothing is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.metrics.attainment import SloPolicy
from workbench.metrics.uncertainty import gain_interval, gain_of_pairs, metric_interval
from workbench.scenario.slo import Slo

from .conftest import row


def rows(seed: int, *, count: int = 300, mean_s: float = 0.5, rate: float = 30.0) -> list[dict[str, Any]]:
    rng = np.random.Generator(np.random.PCG64(seed))
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    return [
        row(arrival, arrival + delay) for arrival, delay in zip(arrivals, rng.exponential(mean_s, count), strict=True)
    ]


def test_metric_interval_of_a_mean_covers_the_truth_most_of_the_time(make_record: Any) -> None:
    hits = 0
    for seed in range(60):
        interval = metric_interval(make_record(rows(seed)), "ttft_s.mean", confidence=0.9)
        assert interval is not None
        hits += interval.low <= 0.5 <= interval.high
    assert 0.8 <= hits / 60 <= 1.0


def test_metric_interval_is_repeatable_and_holds_the_value(make_record: Any) -> None:
    record = make_record(rows(1))
    policy = SloPolicy(default=Slo(ttft=0.5))
    for name in ("goodput_rps", "output_tokens_per_s", "slo_attainment", "ttft_s.p95", "e2el_s.max"):
        interval = metric_interval(record, name, policy=policy)
        assert interval is not None
        assert interval == metric_interval(record, name, policy=policy)
        assert interval.low <= interval.value <= interval.high


def test_metric_interval_value_is_the_summary_figure(make_record: Any) -> None:
    from workbench.metrics import summarize

    record, policy = make_record(rows(2)), SloPolicy(default=Slo(ttft=0.5))
    figures = summarize(record, policy).overall
    for name in ("goodput_rps", "requests_per_s", "total_tokens_per_s", "slo_attainment", "ttft_s.p95"):
        interval = metric_interval(record, name, policy=policy)
        assert interval is not None
        assert interval.value == pytest.approx(figures.value(name))


def test_metric_interval_of_what_is_absent_is_none(make_record: Any) -> None:
    record = make_record([row(0.0, 1.0)])
    assert metric_interval(record, "tpot_s.mean") is None
    with pytest.raises(KeyError):
        metric_interval(record, "kv_usage_max")


def test_gain_interval_of_equal_loads_contains_zero(make_record: Any) -> None:
    gain = gain_interval(make_record(rows(3)), make_record(rows(4)), "ttft_s.mean", maximize=False)
    assert gain is not None
    assert gain.low < 0 < gain.high
    assert not gain.excludes_zero


def test_gain_interval_of_half_the_latency_is_a_gain_of_one_half(make_record: Any) -> None:
    gain = gain_interval(make_record(rows(3)), make_record(rows(3, mean_s=0.25)), "ttft_s.mean", maximize=False)
    assert gain is not None
    assert gain.value == pytest.approx(0.5)
    assert gain.excludes_zero


def test_gain_interval_without_a_baseline_is_none(make_record: Any) -> None:
    policy = SloPolicy(default=Slo(ttft=1e-6))
    assert (
        gain_interval(make_record(rows(1)), make_record(rows(2)), "goodput_rps", maximize=True, policy=policy) is None
    )


def test_gain_of_pairs_literal() -> None:
    gain = gain_of_pairs(np.array([10.0, 10.0]), np.array([12.0, 12.0]), maximize=True)
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.2, 0.2, 0.2))
    latency = gain_of_pairs(np.array([10.0, 10.0]), np.array([8.0, 8.0]), maximize=False)
    assert latency.value == pytest.approx(0.2)


def test_gain_of_pairs_lets_what_moves_both_runs_cancel() -> None:
    """Ratios 1.395, 1.444, 1.434: geometric mean 1.424; logarithms 0.3535 +- 4.303 x 0.01854 / sqrt(3)."""
    gain = gain_of_pairs(np.array([4035.0, 3282.0, 3512.0]), np.array([5627.0, 4741.0, 5035.0]), maximize=True)
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.4241, 0.3600, 0.4912), abs=1e-4)


def test_gain_of_pairs_without_pairs_or_positive_figures_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least two"):
        gain_of_pairs(np.array([1.0]), np.array([1.0]), maximize=True)
    with pytest.raises(ValueError, match="positive"):
        gain_of_pairs(np.array([0.0, 1.0]), np.array([1.0, 2.0]), maximize=True)


@pytest.mark.parametrize("seed", range(3))
def test_gain_of_pairs_of_noise_is_not_significant_most_of_the_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hits = sum(
        not gain_of_pairs(*np.exp(rng.normal(0, 0.1, size=(2, 3))), maximize=True).excludes_zero for _ in range(200)
    )
    assert 180 <= hits <= 199
