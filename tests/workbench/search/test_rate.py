"""The bracket of the sustainable rate, on probes with a known answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.metrics.proportion import Proof
from workbench.search.rate import Probe, RateBracket, find_sustainable_rate, rate_at, rung


class Server:
    """Holds every rate up to its capacity; `grey` around it cannot be resolved."""

    def __init__(self, capacity: float, *, grey: float = 0.0, short: float | None = None) -> None:
        self.capacity, self.grey, self.short = capacity, grey, short
        self.asked: list[tuple[float, int]] = []

    def probe(self, rate: float, factor: int, draw: int) -> Probe:
        self.asked.append((rate, factor))
        limit = self.short if self.short is not None and factor == 1 else self.capacity
        proof = Proof.HOLDS if rate <= limit * (1 - self.grey) else Proof.BROKEN
        if limit * (1 - self.grey) < rate <= limit * (1 + self.grey):
            proof = Proof.UNRESOLVED
        return Probe(
            rate_per_s=rate,
            num_requests=100 * factor,
            proof=proof,
            is_short=self.short is not None and factor == 1,
            served_singly=rate < 0.01,
        )


def search(server: Server, start: float, to_beat: float | None = None) -> RateBracket:
    return find_sustainable_rate(server.probe, start, to_beat=to_beat)


@pytest.mark.parametrize("start", [0.1, 3.0, 9.9, 10.0, 50.0, 900.0])
def test_rate_does_not_depend_on_where_the_search_began(start: float) -> None:
    found = search(Server(10.0), start)
    assert (found.passed, found.failed) == (9.9453, 10.144)
    assert not found.is_coarse


def test_rate_that_no_load_keeps_is_absent_not_zero() -> None:
    found = search(Server(0.0), 5.0)
    assert found.passed is None
    assert found.failed is not None


def test_rate_to_beat_that_is_not_beaten_ends_coarsely_below_it() -> None:
    server = Server(5.0)
    found = search(server, 3.0, to_beat=8.1586)
    assert found.is_coarse
    assert found.passed is not None
    assert found.passed <= 5.0
    assert len(server.asked) <= 6


def test_rate_to_beat_that_is_beaten_is_resolved_to_one_rung() -> None:
    found = search(Server(10.0), 1.0, to_beat=8.1586)
    assert (found.passed, found.failed, found.is_coarse) == (9.9453, 10.144, False)


def test_rate_unresolved_gets_more_requests_and_counts_as_not_shown() -> None:
    server = Server(10.0, grey=0.1)
    found = search(server, 5.0)
    assert found.passed is not None
    assert found.passed <= 9.0
    assert found.failed is not None
    assert found.failed > 11.0
    assert {factor for rate, factor in server.asked if 9.0 < rate <= 11.0} == {1, 4}


def test_rate_that_holds_only_for_a_short_time_is_not_believed() -> None:
    found = search(Server(10.0, short=14.0), 5.0)
    assert found.passed == 9.9453


def test_rung_of_a_rate_is_its_own() -> None:
    assert all(rung(rate_at(index)) == index for index in range(-300, 300))


class Lottery:
    """Holds every rate up to its capacity, but chance decides the first draw of some rates otherwise."""

    def __init__(self, capacity: float, odd: dict[int, bool]) -> None:
        self.capacity, self.odd = capacity, odd

    def probe(self, rate: float, factor: int, draw: int) -> Probe:
        holds = self.odd.get(rung(rate), rate <= self.capacity) if draw == 0 else rate <= self.capacity
        return Probe(rate_per_s=rate, num_requests=100, proof=Proof.HOLDS if holds else Proof.BROKEN)


@pytest.mark.parametrize("unlucky", [rung(10.0), rung(10.0) - 4, rung(10.0) + 4, rung(40.0)])
def test_rate_is_not_capped_by_one_rung_that_failed_by_chance(unlucky: int) -> None:
    found = find_sustainable_rate(Lottery(101.0, {unlucky: False}).probe, 10.0)
    assert found.passed == rate_at(rung(100.0))
    assert found.passed is not None
    assert found.failed == rate_at(rung(100.0) + 1)


def test_rate_that_held_once_by_chance_is_not_the_answer() -> None:
    lucky = dict.fromkeys(range(rung(100.0) + 1, rung(100.0) + 9), True)
    found = find_sustainable_rate(Lottery(101.0, lucky).probe, 90.0)
    assert found.passed == rate_at(rung(100.0))
    assert found.high is not None
    assert found.high >= rate_at(rung(100.0) + 8)


def test_rate_to_beat_is_tried_again_before_a_configuration_is_given_up() -> None:
    found = find_sustainable_rate(Lottery(20.0, {rung(10.0) + 1: False}).probe, 5.0, to_beat=rate_at(rung(10.0)))
    assert not found.is_coarse
    assert found.passed == rate_at(rung(20.0))


def test_rate_of_a_recorded_load_is_not_tried_twice() -> None:
    class Recorded(Server):
        def probe(self, rate: float, factor: int, draw: int) -> Probe:
            assert draw == 0
            return replace(super().probe(rate, factor, draw), is_repeatable=True)

    assert search(Recorded(10.0), 3.0).passed == 9.9453
