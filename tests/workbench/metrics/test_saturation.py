"""Overload is told from the growth of what is inside; a steady state, however busy, is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.metrics.records import FloatArray, Outcome
from workbench.metrics.saturation import backlog_of, ended_s, find_saturation, saturation_of

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


@pytest.mark.parametrize("seed", range(5))
def test_saturation_of_twice_the_capacity_is_found_with_its_slope(seed: int) -> None:
    arrivals, first = single_server(2.0, 400, seed)
    found = find_saturation(arrivals, first, float(arrivals[-1]))
    assert found is not None
    assert found.ttft_s_per_s == pytest.approx(1.0, abs=0.45)
    assert found.queue_per_s == pytest.approx(1.0, abs=0.45)


def test_saturation_is_seldom_seen_at_half_the_capacity() -> None:
    seen = 0
    for seed in range(100):
        arrivals, first = single_server(0.5, 400, seed)
        seen += find_saturation(arrivals, first, float(arrivals[-1])) is not None
    assert seen == 0


def test_saturation_needs_requests() -> None:
    arrivals, first = single_server(3.0, 30, 0)
    assert find_saturation(arrivals, first, float(arrivals[-1])) is None


def test_saturation_does_not_count_those_turned_away_as_a_queue(make_table: Any) -> None:
    # TTFT creeps up by 5 % of the time, and every second request is refused from half-way on.
    rows = [row(float(i), i + 1.0 + 0.05 * i) for i in range(200)]
    for i in range(100, 200, 2):
        rows[i] = row(float(i), outcome=Outcome.REJECTED)

    refused = saturation_of(make_table(rows))
    open_ends = saturation_of(make_table([each | {"outcome": Outcome.UNFINISHED} for each in rows]))

    assert refused is None
    assert open_ends is not None


def test_backlog_lets_those_turned_away_go_at_once(make_table: Any) -> None:
    table = make_table(
        [
            row(0.0, 5.0, 6.0),
            row(1.0, outcome=Outcome.REJECTED),
            row(2.0, 3.0, outcome=Outcome.FAILED),
            row(4.0, outcome=Outcome.UNFINISHED),
        ]
    )

    assert ended_s(table).tolist() == [6.0, 1.0, 3.0, np.inf]
    assert (backlog_of(table).at_half, backlog_of(table).at_end) == (1, 2)
