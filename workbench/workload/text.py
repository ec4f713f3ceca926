"""Text to token ids for files of real prompts. The door to the engine's tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from engine.errors import ModelLoadError
from workbench.scenario.errors import ScenarioError

BYTES = "bytes"
"""Name of the tokenizer that is used when none is given."""


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """A tokenizer by name."""

    name: str
    tokenizer: Any

    def encode(self, text: str) -> Sequence[int]:
        """Token ids, without special tokens of its own."""
        ids: Sequence[int] = self.tokenizer.encode(text)
        return ids


class _Bytes:
    """One token per byte of UTF-8; lone surrogates, which JSON can hold, become a question mark."""

    def encode(self, text: str) -> Sequence[int]:
        return text.encode("utf-8", "replace")


@lru_cache(maxsize=4)
def load_encoder(name: str | None) -> TextEncoder:
    """The tokenizer of a model by name or directory; bytes for None. Raises `ScenarioError`."""
    if name is None or name == BYTES:
        return TextEncoder(BYTES, _Bytes())
    from engine.models.tokenizer import load_tokenizer

    try:
        return TextEncoder(name, _Replacing(load_tokenizer(name)))
    except ModelLoadError as error:
        raise ScenarioError(f"tokenizer: {error}") from None


@dataclass(frozen=True, slots=True)
class _Replacing:
    tokenizer: Any

    def encode(self, text: str) -> Sequence[int]:
        ids: Sequence[int] = self.tokenizer.encode(text.encode("utf-8", "replace").decode())
        return ids
