from __future__ import annotations

import numpy as np

from workbench.workload.prompts import RememberedPrompts, TokenArray


class CountedPrompts:
    """Request i asks with i + 1 tokens; counts how often."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def token_ids(self, index: int) -> TokenArray:
        self.made.append(index)
        return np.arange(index + 1, dtype=np.int32)

    def fingerprint(self) -> bytes:
        return b"counted"


def test_remembered_prompts_within_their_limit_are_made_once() -> None:
    source = CountedPrompts()
    prompts = RememberedPrompts(source, most_tokens=3)
    for _ in range(2):
        assert [prompts.token_ids(i).tolist() for i in range(3)] == [[0], [0, 1], [0, 1, 2]]
    assert source.made == [0, 1, 2, 2]
    assert prompts.fingerprint() == b"counted"
