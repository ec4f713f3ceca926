"""What prompts have in common: where they first differ, and what they share behind that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workbench.capacity.diagnosis.evidence import Sharing

Tokens = npt.NDArray[np.integer]
_RUN = 32
"""Tokens that must agree to count as common; chance does not do that."""


def find_sharing(prompts: Sequence[Tokens], names: Sequence[str]) -> Sharing | None:
    """The pair of prompts that shares most without a hit, and the part of all tokens that an earlier prompt has too.

    None where no run of 32 tokens occurs twice.
    """
    anchors: dict[bytes, tuple[int, int]] = {}
    shared = total = 0
    best: tuple[int, int, int, int, int] | None = None  # (length, earlier, start there, later, start here)
    for number, prompt in enumerate(prompts):
        tokens = np.ascontiguousarray(prompt, dtype=np.int64)
        position, found = 0, 0
        while position + _RUN <= len(tokens):
            known = anchors.get(tokens[position : position + _RUN].tobytes())
            if known is None:
                position += 1
                continue
            earlier, start = known
            length = _common(prompts[earlier], start, tokens, position)
            if best is None or length > best[0]:
                best = (length, earlier, start, number, position)
            found += length
            position += length
        shared, total = shared + found, total + len(tokens)
        for start in range(0, len(tokens) - _RUN + 1, _RUN):
            anchors.setdefault(tokens[start : start + _RUN].tobytes(), (number, start))
    if best is None or not total:
        return None
    length, earlier, start, number, position = best
    back = _common_back(prompts[earlier], start, prompts[number], position)
    first = _first_difference(prompts[earlier], prompts[number])
    return Sharing(
        potential=shared / total,
        first_difference=first,
        tokens=(_at(prompts[earlier], first), _at(prompts[number], first)),
        common_from=position - back,
        common_tokens=length + back,
        requests=(names[earlier], names[number]),
    )


def _common(earlier: Tokens, start: int, later: Tokens, position: int) -> int:
    """Equal tokens from the two positions on."""
    size = min(len(earlier) - start, len(later) - position)
    differs = np.flatnonzero(earlier[start : start + size] != later[position : position + size])
    return int(differs[0]) if len(differs) else size


def _common_back(earlier: Tokens, start: int, later: Tokens, position: int) -> int:
    """Equal tokens right before the two positions."""
    size = min(start, position)
    differs = np.flatnonzero(earlier[start - size : start] != later[position - size : position])
    return size - 1 - int(differs[-1]) if len(differs) else size


def _first_difference(earlier: Tokens, later: Tokens) -> int:
    return _common(earlier, 0, later, 0)


def _at(prompt: Tokens, position: int) -> int:
    return int(prompt[position]) if position < len(prompt) else -1
