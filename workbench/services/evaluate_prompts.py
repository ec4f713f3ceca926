"""Prompts of a client that sends the same few again and again."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from workbench.services.evaluate_cells import Row
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


def num_distinct_prompts(row: Row) -> int | None:
    """How many prompts the row's client had, None where each request had its own.

    Runs whose prefill would need more than the chip's peak were flagged when they were collected. Their times are those
    of prompts that mostly lie in the prefix cache, which is on by default.
    """
    return _AIPERF_PROMPTS if "peak in prefill" in (row.get("quality") or "") else None
