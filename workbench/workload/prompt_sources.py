"""Which source gives the prompts of which class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workbench.workload.columns import Columns
from workbench.workload.prompts import (
    HashedPrompts,
    MixedPrompts,
    PromptSource,
    RandomPrompts,
    TextPrompts,
    Vocabulary,
)
from workbench.workload.records import ModelLimits
from workbench.workload.traces.table import TraceTable


def prompts_of(seed: int, limits: ModelLimits, columns: Columns, tables: Mapping[str, TraceTable]) -> PromptSource:
    """`tables` are the files of classes by name; those that say nothing of their prompts' content get random ones."""
    vocabulary = Vocabulary(size=limits.vocab_size, first_id=limits.first_token_id)
    files: dict[int, PromptSource] = {}
    for number, name in enumerate(columns.class_names):
        source = _of_table(seed, vocabulary, tables[name]) if name in tables else None
        if source is not None:
            files[number] = source
    has_headers = bool(columns.num_header_tokens.any())
    generated = RandomPrompts(
        seed=seed,
        vocabulary=vocabulary,
        class_names=columns.class_names,
        class_index=columns.class_index,
        index_in_class=columns.index_in_class,
        num_prompt_tokens=columns.num_prompt_tokens,
        num_prefix_tokens=columns.num_prefix_tokens,
        prefix_group=columns.prefix_group,
        num_header_tokens=columns.num_header_tokens if has_headers else None,
        turn=columns.turn if has_headers else None,
    )
    if not files:
        return generated
    return MixedPrompts(
        generated=generated,
        files=files,
        class_index=columns.class_index,
        file_row=columns.file_row,
        num_prompt_tokens=columns.num_prompt_tokens,
    )


def _of_table(seed: int, vocabulary: Vocabulary, table: TraceTable) -> PromptSource | None:
    counts = table.input_tokens.astype(np.int64)
    if table.tokens is not None:
        return TextPrompts(seed=seed, vocabulary=vocabulary, spans=table.tokens, num_prompt_tokens=counts)
    if table.block_ids is None or table.block_offsets is None or len(table.block_ids) == 0:
        return None
    assert table.block_tokens is not None
    return HashedPrompts(
        seed=seed,
        vocabulary=vocabulary,
        block_tokens=table.block_tokens,
        block_ids=table.block_ids,
        block_offsets=table.block_offsets,
        num_prompt_tokens=counts,
    )
