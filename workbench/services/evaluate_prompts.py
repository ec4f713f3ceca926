"""Prompts that a server sees again: within a run, or from the run before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from workbench.workload.prompts import PromptSource, TokenArray

_AIPERF_PROMPTS = 100
"""Prompts that AIPerf makes unless told otherwise (`--num-dataset-entries`); requests take them in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedPrompts:
    """The first `num_distinct` prompts of a source, over and over."""

    source: PromptSource
    num_distinct: int

    def token_ids(self, index: int) -> TokenArray:
        return self.source.token_ids(index % self.num_distinct)

    def fingerprint(self) -> bytes:
        return blake2b(self.source.fingerprint() + self.num_distinct.to_bytes(8, "little")).digest()


def num_distinct_prompts(row: Mapping[str, str]) -> int | None:
    """How many prompts the row's client had, None where each request had its own.

    Runs whose prefill would need more than the chip's peak were flagged when they were collected. Their times are those
    of prompts that mostly lie in the prefix cache, which is on by default.
    """
    return _AIPERF_PROMPTS if "peak in prefill" in (row.get("quality") or "") else None


_FIRST_RATE = 32.0
"""Requests per second of the first run in IOG's series (32, 16, 8, 4, 1: `run_benchmark.sh`)."""


def was_served_before(row: Mapping[str, str]) -> bool:
    """The run repeats the requests of an earlier one on the same server, whose prefix cache holds what fits."""
    try:
        return "IOG-Foundation" in row.get("source", "") and float(row.get("request_rate", "")) < _FIRST_RATE
    except ValueError:
        return False
