"""Wilson's interval and what it proves."""

from __future__ import annotations

import pytest

from workbench.metrics.proportion import Proof, fewest_to_show, most_misses, prove, wilson_interval


def test_wilson_interval_matches_published_values() -> None:
    # Newcombe 1998, table I, method 3: 81/263, 15/148, 0/20, 1/29
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_wilson_interval_without_samples_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_proof_of_99_percent_needs_381_requests() -> None:
    assert prove(380, 380, 0.99) is Proof.UNRESOLVED
    assert prove(381, 381, 0.99) is Proof.HOLDS


def test_proof_of_every_request_is_that_none_missed() -> None:
    assert prove(10, 10, 1.0) is Proof.HOLDS
    assert prove(9, 10, 1.0) is not Proof.HOLDS


@pytest.mark.parametrize(("num", "required"), [(300, 0.95), (1200, 0.99), (30, 0.9), (80, 0.5)])
def test_most_misses_is_the_last_number_not_broken(num: int, required: float) -> None:
    most = most_misses(num, required)
    assert prove(num - most, num, required) is not Proof.BROKEN
    assert prove(num - most - 1, num, required) is Proof.BROKEN


@pytest.mark.parametrize(("required", "fewest"), [(0.5, 4), (0.95, 73), (0.99, 381), (1.0, 1)])
def test_fewest_to_show_is_where_all_met_begins_to_hold(required: float, fewest: int) -> None:
    assert fewest_to_show(required) == fewest
    assert prove(fewest, fewest, required) is Proof.HOLDS
    assert prove(fewest - 1, fewest - 1, required) is not Proof.HOLDS
