"""Which replica of a pool takes a request. Decided at its arrival, from what a router can know then."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from workbench.scenario.target import SimulatedTarget as FleetSpec
from workbench.workload.records import Workload

_POINTS = 128
"""Places of each replica on the hash ring."""


class Load(Protocol):
    """What the router sees of a replica."""

    slot: int
    """Its place in the pool, which it keeps while others come and go."""

    @property
    def num_open(self) -> int:
        """Requests sent there that have not ended."""
        ...

    @property
    def num_kv_blocks(self) -> int:
        """Blocks in use and blocks that the prompts waiting will need."""
        ...


class Router(Protocol):
    """Chooses an index into `loads`."""

    def choose(self, loads: Sequence[Load], key: bytes) -> int:
        """`key` stands for the prompt's prefix or the conversation."""
        ...


class Random:
    """Uniformly."""

    def __init__(self, seed: int) -> None:
        self._numbers = np.random.default_rng(seed)

    def choose(self, loads: Sequence[Load], key: bytes) -> int:
        return int(self._numbers.integers(len(loads)))


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, loads: Sequence[Load], key: bytes) -> int:
        self._next += 1
        return (self._next - 1) % len(loads)


class LeastLoaded:
    """Fewest open requests; the first of equals."""

    def choose(self, loads: Sequence[Load], key: bytes) -> int:
        return min(range(len(loads)), key=lambda i: loads[i].num_open)


class LeastKv:
    """Fewest KV blocks in use or asked for; fewest open requests among equals."""

    def choose(self, loads: Sequence[Load], key: bytes) -> int:
        return min(range(len(loads)), key=lambda i: (loads[i].num_kv_blocks, loads[i].num_open))


class PrefixHash:
    """Consistent hashing with bounded load (Mirrokni, Thorup, Zadimoghaddam, 2018): the first replica clockwise from
    the key that is there and has fewer than `bound` times the mean of open requests."""

    def __init__(self, num_replicas: int, bound: float) -> None:
        self._bound = bound
        points = [(_place(f"{i}/{k}".encode()), i) for i in range(num_replicas) for k in range(_POINTS)]
        points.sort()
        self._places = [place for place, _ in points]
        self._owners = [owner for _, owner in points]

    def choose(self, loads: Sequence[Load], key: bytes) -> int:
        most = math.ceil(self._bound * (sum(load.num_open for load in loads) + 1) / len(loads))
        there = {load.slot: i for i, load in enumerate(loads)}
        start = bisect_right(self._places, _place(key))
        for step in range(len(self._owners)):
            index = there.get(self._owners[(start + step) % len(self._owners)])
            if index is not None and loads[index].num_open < most:
                return index
        raise AssertionError("a bound of at least the mean leaves room somewhere")


def router_of(spec: FleetSpec, num_replicas: int, seed: int) -> Router:
    """The router that a target asks for."""
    match spec.routing:
        case "random":
            return Random(seed)
        case "round_robin":
            return RoundRobin()
        case "least_loaded":
            return LeastLoaded()
        case "least_kv":
            return LeastKv()
        case "prefix_hash":
            return PrefixHash(num_replicas, spec.load_bound)


def prefix_key(spec: FleetSpec, workload: Workload, row: int) -> bytes:
    """What routing by prefix goes by: the conversation, or how the prompt begins; empty for other routings."""
    if spec.routing != "prefix_hash":
        return b""
    session = int(workload.session_index[row])
    if session >= 0:
        return f"session {session}".encode()
    return workload.prompt_token_ids(row)[: spec.prefix_tokens].tobytes()


def _place(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())
