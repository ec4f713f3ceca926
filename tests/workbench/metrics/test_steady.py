"""Warm-up is recognised where there is one, and a run without a steady state is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.metrics.records import Outcome
from workbench.metrics.steady import steady_window, warm_up_length

from .conftest import row


def transient(length: int, count: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Rises from 0 to 50 over `length` observations, then stays, with noise of standard deviation 2."""
    rng = np.random.Generator(np.random.PCG64(seed))
    level = 50.0 * np.minimum(np.arange(count) / max(length, 1), 1.0)
    return np.asarray(level + rng.normal(0, 2, count), dtype=np.float64)


@pytest.mark.parametrize("length", [50, 100, 200])
def test_warm_up_of_known_length_is_recognised(length: int) -> None:
    found = [warm_up_length(transient(length, 800, seed)) for seed in range(5)]
    assert all(0.75 * length <= cut <= length + 150 for cut in found)


def test_warm_up_of_a_steady_run_is_short() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    cuts = [warm_up_length(rng.normal(50, 2, 800)) for _ in range(20)]
    assert float(np.median(cuts)) <= 100


def test_warm_up_of_few_requests_is_not_looked_for() -> None:
    assert warm_up_length(transient(20, 49, 0)) == 0


def test_steady_window_of_a_load_with_refusals_is_not_all_warm_up(make_record: Any) -> None:
    refused = [
        row(i * 0.1, outcome=Outcome.REJECTED) if i % 3 == 0 else row(i * 0.1, i * 0.1 + 1.0) for i in range(900)
    ]

    window = steady_window(make_record(refused))

    assert window.start_s < 10.0
