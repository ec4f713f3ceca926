"""One seed, split by name: streams that do not disturb each other and are equal in every process."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The generator of the stream `names`; equal arguments give equal draws, whatever else was drawn."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(_digest(seed, names, 16), "little")))


def content_stream(seed: int, *names: str | int) -> np.random.Generator:
    """Another generator of that name, for what needs one per request: its state is the digest itself. NumPy's mixing of
    a seed takes most of the time of making a generator."""
    return np.random.Generator(np.random.PCG64(_Digest(_digest(seed, names, 32))))  # type: ignore[arg-type]


class _Digest(ISeedSequence):
    """A digest as the seed: mixed already."""

    def __init__(self, digest: bytes) -> None:
        self._digest = digest

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[Any]:
        return np.frombuffer(self._digest, dtype=dtype, count=n_words)


def _digest(seed: int, names: tuple[str | int, ...], size: int) -> bytes:
    """A stable hash of the seed and the names."""
    content = "\0".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return blake2b(content.encode(), digest_size=size).digest()
