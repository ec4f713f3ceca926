"""Routers, against loads written down."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from workbench.loadgen.fleet.routing import LeastKv, LeastLoaded, PrefixHash, RoundRobin


@dataclass
class _Load:
    num_open: int = 0
    num_kv_blocks: int = 0
    slot: int = 0


def _loads(*num_open: int) -> list[_Load]:
    return [_Load(num_open=number, slot=slot) for slot, number in enumerate(num_open)]


def test_round_robin_takes_one_after_the_other() -> None:
    router = RoundRobin()

    assert [router.choose([_Load(), _Load(), _Load()], b"") for _ in range(5)] == [0, 1, 2, 0, 1]


def test_least_loaded_takes_the_fewest_open_requests() -> None:
    assert LeastLoaded().choose([_Load(num_open=3), _Load(num_open=1), _Load(num_open=1)], b"") == 1


def test_least_kv_takes_the_fewest_blocks_whatever_is_open() -> None:
    loads = [_Load(num_open=1, num_kv_blocks=90), _Load(num_open=9, num_kv_blocks=10)]

    assert LeastKv().choose(loads, b"") == 1


def test_prefix_hash_with_room_sends_equal_prefixes_to_one_replica() -> None:
    router, loads = PrefixHash(4, 1.25), _loads(10, 10, 10, 10)

    chosen = [router.choose(loads, f"prefix {i}".encode()) for i in range(200)]

    assert chosen == [router.choose(loads, f"prefix {i}".encode()) for i in range(200)]
    assert all(chosen.count(i) > 20 for i in range(4))


def test_prefix_hash_over_the_bound_goes_on_to_another_replica() -> None:
    router = PrefixHash(2, 1.25)
    full = _loads(0, 0)
    owner = router.choose(full, b"prefix")
    full[owner].num_open = 10

    assert router.choose(full, b"prefix") == 1 - owner


def test_prefix_hash_with_one_replica_more_moves_few_keys() -> None:
    keys = [f"prefix {i}".encode() for i in range(1000)]
    four, five = PrefixHash(4, 1.25), PrefixHash(5, 1.25)
    before = [four.choose(_loads(8, 8, 8, 8), key) for key in keys]
    after = [five.choose(_loads(8, 8, 8, 8, 8), key) for key in keys]

    moved = sum(a != b for a, b in zip(before, after, strict=True))

    assert moved / 1000 == pytest.approx(0.2, abs=0.08)
    assert {b for a, b in zip(before, after, strict=True) if a != b} == {4}


def test_prefix_hash_while_one_is_away_moves_its_keys_alone() -> None:
    keys = [f"prefix {i}".encode() for i in range(400)]
    router, all_four = PrefixHash(4, 1.25), _loads(8, 8, 8, 8)
    without = [load for load in all_four if load.slot != 1]

    before = [all_four[router.choose(all_four, key)].slot for key in keys]
    after = [without[router.choose(without, key)].slot for key in keys]

    assert {a for a, b in zip(before, after, strict=True) if a != b} == {1}
    assert 1 not in after
