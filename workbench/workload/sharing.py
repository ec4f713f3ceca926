"""How much of the prompts a prefix cache without limits would have seen before, by block size."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.workload.traces.table import TraceTable

TOKEN_BLOCK = 16
"""Block size of real prompts, tokens; the engine's default."""
_FACTORS = (1, 2, 4, 8)
_MAX_TOKENS = 50_000_000
"""Prompts of real text are looked at up to here: their turns repeat each other, so there may be far more than text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingFigures:
    """Leading blocks seen in an earlier request / all blocks."""

    block_tokens: int
    hit_fraction: float | None
    """At `block_tokens`; None for no blocks."""
    num_requests: int
    """Requests looked at, from the first on."""
    by_block_size: dict[int, float]
    """Multiples of `block_tokens`. Small blocks share more."""


def sharing_of_trace(table: TraceTable) -> SharingFigures | None:
    """None for a trace that says nothing of its prompts' content."""
    if table.block_ids is not None and table.block_offsets is not None and len(table.block_ids):
        assert table.block_tokens is not None
        offsets = table.block_offsets.tolist()
        ids = table.block_ids.tolist()
        rows = (ids[start:end] for start, end in itertools.pairwise(offsets))
        # The format's own blocks, the partial last one included: ids stand for it too.
        return _figures(_leading(rows), table.block_tokens, count_partial=True)
    if table.tokens is not None:
        spans = table.tokens
        count = int(np.searchsorted(np.cumsum(spans.ends - spans.starts), _MAX_TOKENS, side="right"))
        bounds = zip(spans.starts[:count].tolist(), spans.ends[:count].tolist(), strict=True)
        return sharing_of_prompts(spans.ids[start:end] for start, end in bounds)
    return None


def sharing_of_prompts(prompts: Iterable[npt.NDArray[Any]], block_tokens: int = TOKEN_BLOCK) -> SharingFigures:
    """Of prompts as token ids, in order of arrival; only whole blocks count, as in the engine."""
    chains: dict[tuple[int, bytes], int] = {}

    def blocks(prompt: npt.NDArray[Any]) -> list[int]:
        """One number per block that stands for everything up to its end."""
        parent, found = -1, []
        for start in range(0, len(prompt) - block_tokens + 1, block_tokens):
            parent = chains.setdefault((parent, prompt[start : start + block_tokens].tobytes()), len(chains))
            found.append(parent)
        return found

    return _figures(_leading(blocks(np.asarray(prompt)) for prompt in prompts), block_tokens, count_partial=False)


def _leading(rows: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """(leading blocks seen before, blocks) of each request."""
    seen: set[int] = set()
    found = []
    for ids in rows:
        hits = next((index for index, block in enumerate(ids) if block not in seen), len(ids))
        seen.update(ids[hits:])
        found.append((hits, len(ids)))
    return found


def _figures(rows: list[tuple[int, int]], block_tokens: int, *, count_partial: bool) -> SharingFigures:
    by_size = {}
    for factor in _FACTORS:
        num_hits = sum(hits // factor for hits, _ in rows)
        num_blocks = sum(-(-total // factor) if count_partial else total // factor for _, total in rows)
        if num_blocks:
            by_size[block_tokens * factor] = num_hits / num_blocks
    return SharingFigures(
        block_tokens=block_tokens, hit_fraction=by_size.get(block_tokens), num_requests=len(rows), by_block_size=by_size
    )
