"""Overload is told from the growth of what is inside; a steady state, however busy, is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.metrics.records import FloatArray, Outcome
from workbench.metrics.saturation import find_saturation, fit_trend, left_s, saturation_of

from .conftest import row


def single_server(load: float, count: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """(arrivals, first tokens) of a queue with exponential gaps and service at `load` of its capacity of 1/s."""
    rng = np.random.Generator(np.random.PCG64(seed))
    arrivals = np.cumsum(rng.exponential(1 / load, count))
    service = rng.exponential(1.0, count)
    done = np.zeros(count)
    free = 0.0
    for i in range(count):
        free = max(free, arrivals[i]) + service[i]
        done[i] = free
    return arrivals, done


def queue(load: float, count: int, seed: int, make_table: Any) -> Any:
    arrivals, done = single_server(load, count, seed)
    return make_table([row(float(a), float(d)) for a, d in zip(arrivals, done, strict=True)])


@pytest.mark.parametrize("seed", range(5))
def test_saturation_of_twice_the_capacity_is_found_with_its_slope(seed: int) -> None:
    arrivals, first = single_server(2.0, 400, seed)
    found = find_saturation(arrivals, first, first)
    assert found is not None
    assert found.ttft_s_per_s == pytest.approx(1.0, abs=0.45)
    assert found.inside_per_s == pytest.approx(1.0, abs=0.45)


@pytest.mark.parametrize(("load", "most"), [(0.5, 0), (0.8, 3)])
def test_saturation_is_seldom_seen_below_capacity(load: float, most: int, make_table: Any) -> None:
    assert sum(saturation_of(queue(load, 400, seed, make_table)) is not None for seed in range(60)) <= most


def test_saturation_of_half_over_capacity_is_seldom_missed(make_table: Any) -> None:
    assert sum(saturation_of(queue(1.5, 800, seed, make_table)) is not None for seed in range(40)) >= 39


def test_saturation_needs_requests() -> None:
    arrivals, first = single_server(3.0, 30, 0)
    assert find_saturation(arrivals, first, first) is None


def test_saturation_is_not_a_burst_at_the_end_of_a_short_run(make_table: Any) -> None:
    # 6 inside at the last arrival, 1 halfway, and a TTFT of 10 ms: nothing waits.
    rows = [row(i * 0.1, i * 0.1 + 0.01, i * 0.1 + 0.09) for i in range(120)]
    rows += [row(12.0 + i * 0.001, 12.01 + i * 0.001, 12.09 + i * 0.001) for i in range(6)]
    assert saturation_of(make_table(rows)) is None


def test_saturation_is_not_a_server_that_fills(make_table: Any) -> None:
    # Answers take longer than the load lasts: the number inside grows to the end, and nobody waits.
    rows = [row(i * 0.1, i * 0.1 + 0.02, i * 0.1 + 60.0) for i in range(300)]
    assert saturation_of(make_table(rows)) is None


def test_saturation_shows_as_a_growing_time_per_token_where_nobody_waits(make_table: Any) -> None:
    # Every request starts at once, but each is served more slowly than the one before.
    rows = [row(i * 0.1, i * 0.1 + 0.02, i * 0.1 + 1.0 + 0.05 * i) for i in range(400)]
    found = saturation_of(make_table(rows))
    assert found is not None
    assert found.ttft_s_per_s is None
    assert "time per output token" in found.message


def test_saturation_does_not_count_those_turned_away_as_a_queue(make_table: Any) -> None:
    # Half of the load is refused; the other half is served at once.
    rows = [row(float(i), i + 1.0) if i % 2 else row(float(i), outcome=Outcome.REJECTED) for i in range(200)]
    assert saturation_of(make_table(rows)) is None


def test_trend_of_a_line_is_its_slope() -> None:
    times = np.arange(80.0)
    found = fit_trend(times, 3.0 + 0.5 * times)
    assert found is not None
    assert found.slope_per_s == pytest.approx(0.5)
    assert found.growth == pytest.approx(0.5 * 79)


def test_requests_turned_away_leave_at_once(make_table: Any) -> None:
    table = make_table(
        [
            row(0.0, 5.0, 6.0),
            row(1.0, outcome=Outcome.REJECTED),
            row(2.0, 3.0, outcome=Outcome.FAILED),
            row(4.0, outcome=Outcome.UNFINISHED),
        ]
    )
    assert left_s(table).tolist() == [6.0, 1.0, 3.0, np.inf]
