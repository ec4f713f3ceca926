"""Realised arrivals against what the process promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from workbench.scenario import ScenarioError
from workbench.workload.arrivals import _inverse_mass


def gaps(workload: Any) -> Any:
    return np.diff(np.concatenate([[0.0], workload.arrival_s]))


def test_arrivals_constant_is_constant(make_workload: Any) -> None:
    workload = make_workload(arrivals="{kind: constant, rate: 8}", num_requests=9)
    assert workload.arrival_s.tolist() == [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0]
    assert workload.summary.rate_per_s == 8.0
    assert workload.summary.cv == 0.0


def test_arrivals_all_at_once_are_at_zero(make_workload: Any) -> None:
    assert not make_workload(arrivals="{kind: all_at_once}").arrival_s.any()


def test_arrivals_poisson_gaps_are_exponential(make_workload: Any) -> None:
    workload = make_workload(num_requests=20_000)
    assert stats.kstest(gaps(workload), stats.expon(scale=0.25).cdf).pvalue > 0.01
    assert workload.summary.rate_per_s == pytest.approx(4, rel=0.02)
    assert workload.summary.cv == pytest.approx(1, rel=0.02)
    assert workload.summary.rate_per_s != 4  # not rescaled


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_arrivals_gamma_gaps_have_the_stated_shape(make_workload: Any, burstiness: float) -> None:
    workload = make_workload(arrivals=f"{{kind: gamma, rate: 4, burstiness: {burstiness}}}", num_requests=20_000)
    expected = stats.gamma(burstiness, scale=1 / (4 * burstiness))
    assert stats.kstest(gaps(workload), expected.cdf).pvalue > 0.01
    assert workload.summary.cv == pytest.approx(burstiness**-0.5, rel=0.03)


def test_arrivals_duration_bounds_the_run(make_workload: Any) -> None:
    workload = make_workload(num_requests=None, duration="60s")
    assert 200 < len(workload) < 280
    assert workload.arrival_s.max() < 60


def test_arrivals_stages_have_their_rates(make_workload: Any) -> None:
    stages = "{kind: stages, stages: [{rate: 50, duration: 40s}, {rate: 0, duration: 10s}, {rate: 10, duration: 100s}]}"
    times = make_workload(arrivals=stages, num_requests=None).arrival_s
    counts, _ = np.histogram(times, bins=[0, 40, 50, 150])
    assert counts[0] == pytest.approx(2000, abs=150)
    assert counts[1] == 0
    assert counts[2] == pytest.approx(1000, abs=100)


def test_arrivals_ramp_has_a_linear_rate(make_workload: Any) -> None:
    ramp = "{kind: ramp, start_rate: 0, end_rate: 100, duration: 100s}"
    times = make_workload(arrivals=ramp, num_requests=None).arrival_s
    assert stats.kstest(times, lambda t: (t / 100) ** 2).pvalue > 0.01
    assert len(times) == pytest.approx(5000, abs=220)


def test_inverse_mass_flat_and_falling_rates() -> None:
    assert _inverse_mass(np.array([0.0, 5.0, 10.0]), 10.0, 1.0, 1.0).tolist() == [0.0, 5.0, 10.0]
    assert _inverse_mass(np.array([5.0]), 10.0, 1.0, 0.0).tolist() == [10.0]


def test_arrivals_absurd_numbers_are_refused_not_allocated(make_workload: Any) -> None:
    with pytest.raises(ScenarioError, match="requests"):
        make_workload(num_requests=None, arrivals="{kind: poisson, rate: 1e12}", duration="1h")
    with pytest.raises(ScenarioError, match="requests"):
        make_workload(
            num_requests=None, arrivals="{kind: ramp, start_rate: 1e12, end_rate: 1e12, duration: 1h}", duration="1h"
        )
