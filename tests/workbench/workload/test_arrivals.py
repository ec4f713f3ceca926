"""Realised arrivals against what the process promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from workbench.scenario import ScenarioError, parse_scenario
from workbench.workload import ModelLimits, generate_workload
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


def test_arrivals_on_off_bursts_have_their_rates(make_workload: Any) -> None:
    bursts = "{kind: on_off, rate: 100, on: 10s, off: 30s, off_rate: 10}"
    workload = make_workload(arrivals=bursts, num_requests=None, duration="400s")
    phase = workload.arrival_s % 40
    assert np.count_nonzero(phase < 10) == pytest.approx(10_000, rel=0.03)
    assert np.count_nonzero(phase >= 10) == pytest.approx(3_000, rel=0.06)
    assert workload.summary.asked_rate_per_s == pytest.approx(32.5)
    assert workload.summary.cv > 1.5
    assert stats.kstest(phase[phase < 10] / 10, stats.uniform.cdf).pvalue > 0.01


def test_arrivals_on_off_without_background_are_silent_between(make_workload: Any) -> None:
    workload = make_workload(arrivals="{kind: on_off, rate: 50, on: 2s, off: 8s}", num_requests=1000)
    assert len(workload) == 1000
    assert (workload.arrival_s % 10 < 2).all()


def test_arrivals_diurnal_follows_the_day(make_workload: Any) -> None:
    day = "{kind: diurnal, mean_rate: 20, peak_to_mean: 1.8, period: 1000s, peak_at: 250s}"
    times = make_workload(arrivals=day, num_requests=None, duration="2000s").arrival_s
    assert len(times) == pytest.approx(40_000, rel=0.02)
    counts, _ = np.histogram(times % 1000, bins=10, range=(0, 1000))
    middle = np.arange(50, 1000, 100)
    width = np.sinc(0.1)  # the mean of a cosine over a tenth of its period
    expected = 4000 * (1 + 0.8 * width * np.cos(2 * np.pi * (middle - 250) / 1000))
    assert counts == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(
    "arrivals",
    [
        "{kind: on_off, rate: 30, on: 1s, off: 1s}",
        "{kind: diurnal, mean_rate: 20, period: 60s}",
        "{kind: gamma, rate: 4, burstiness: 0.3}",
    ],
)
def test_arrivals_longer_run_extends_the_shorter(make_workload: Any, arrivals: str) -> None:
    short = make_workload(arrivals=arrivals, num_requests=100).arrival_s
    long = make_workload(arrivals=arrivals, num_requests=9000).arrival_s
    assert np.array_equal(short, long[:100])
    assert (np.diff(long) >= 0).all()


def test_arrivals_drift_of_a_ramp_is_reported_and_of_poisson_small(make_workload: Any) -> None:
    ramp = make_workload(arrivals="{kind: ramp, start_rate: 5, end_rate: 50, duration: 100s}", num_requests=None)
    assert ramp.summary.rate_drift > 0.5
    assert "drift between thirds" in ramp.summary.describe()[0]
    assert make_workload(num_requests=20_000).summary.rate_drift < 0.05


def test_arrivals_own_process_of_a_class_beside_a_common_one(make_workload: Any) -> None:
    classes = (
        "[{name: a, input_tokens: 5, output_tokens: 5}, {name: b, input_tokens: 5, output_tokens: 5, "
        "arrivals: {kind: constant, rate: 2}}, {name: c, input_tokens: 5, output_tokens: 5, count: 7, "
        "arrivals: {kind: all_at_once}}]"
    )
    workload = make_workload(classes=classes, num_requests=None, duration="50s")
    counts = {name: summary.num_requests for name, summary in workload.summary.classes.items()}
    assert counts["a"] == pytest.approx(200, abs=45)
    assert (counts["b"], counts["c"]) == (100, 7)
    own = workload.arrival_s[workload.class_index == workload.class_names.index("b")]
    assert np.diff(own) == pytest.approx(np.full(99, 0.5))
    assert (np.diff(workload.arrival_s) >= 0).all()


def test_arrivals_of_classes_alone_need_no_common_process() -> None:
    scenario = parse_scenario(
        "name: t\nworkload: {duration: 10s, classes: [{name: a, input_tokens: 5, output_tokens: 5, "
        "arrivals: {kind: constant, rate: 3}}]}"
    )
    workload = generate_workload(scenario, ModelLimits(max_model_len=None, vocab_size=99))
    assert len(workload) == 30


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("{classes: [{name: a, input_tokens: 5, output_tokens: 5}]}", "workload.arrivals: is missing"),
        (
            "{classes: [{name: a, input_tokens: 5, output_tokens: 5, arrivals: {kind: poisson, rate: 1}}]}",
            "workload.classes.0.count: is missing: give it, or workload.duration",
        ),
        (
            "{num_requests: 5, arrivals: {kind: poisson, rate: 1}, classes: [{name: a, input_tokens: 5, "
            "output_tokens: 5, count: 5, arrivals: {kind: poisson, rate: 1}}]}",
            "workload.arrivals: is used by no class",
        ),
        (
            "{num_requests: 5, arrivals: {kind: closed_loop, concurrency: 2}, classes: [{name: a, input_tokens: 5, "
            "output_tokens: 5, conversation: {turns: 3}}]}",
            "workload.classes.0.conversation: does not go with closed_loop",
        ),
        (
            "{arrivals: {kind: poisson, rate: 1}, duration: 5s, classes: [{name: a, weight: 2, input_tokens: 5, "
            "output_tokens: 5, arrivals: {kind: poisson, rate: 1}}]}",
            "workload.classes.0.weight: excludes arrivals",
        ),
    ],
)
def test_arrivals_that_contradict_each_other_are_refused(workload: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(f"name: t\nworkload: {workload}")
    assert message in str(caught.value)
