"""Text to token ids and back. No torch here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from engine.errors import ModelLoadError
from engine.model_spec import load_spec
from engine.models.builtin import BUILTIN_SPECS
from engine.models.location import TOKENIZER_FILES, find_model_directory


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def eos_token_id(self) -> int | None:
        """The first of the model's end-of-sequence tokens (all of them: `ModelSpec.eos_token_ids`)."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The model's Jinja template for chats, None if it has none."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens written out in it become their ids, none are added."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens; bytes that are not UTF-8 (yet) become U+FFFD."""
        ...


class ByteTokenizer:
    """Ids 0 to 255 are bytes of UTF-8; all others, bos and eos among them, have no text. For built-in models."""

    chat_template: str | None = None
    eos_token_id: int | None = 257

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_id for token_id in token_ids if token_id < 256).decode("utf-8", errors="replace")


class JsonTokenizer:
    """A Hugging Face `tokenizer.json`."""

    def __init__(self, directory: Path) -> None:
        """Raises `ModelLoadError` if the directory has no readable `tokenizer.json` or `tokenizers` is missing."""
        try:
            from tokenizers import Tokenizer as RustTokenizer
        except ImportError:
            raise ModelLoadError(
                f"{directory}: reading its tokenizer needs the tokenizers package. Run: pip install tokenizers"
            ) from None
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError(f"{path}: not found. Without it, give prompts as token ids")
        try:
            self._tokenizer: Any = RustTokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelLoadError(f"{path}: cannot be read as a tokenizer ({error})") from error
        self._chat_template = _chat_template(directory / "tokenizer_config.json")
        self._eos_token_id = next(iter(load_spec(directory).eos_token_ids), None)

    @property
    def eos_token_id(self) -> int | None:
        return self._eos_token_id

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a model by the name that `EngineConfig.model` gives it. Raises `ModelLoadError`."""
    if model in BUILTIN_SPECS:
        return ByteTokenizer()
    return JsonTokenizer(find_model_directory(model, TOKENIZER_FILES))


def _chat_template(path: Path) -> str | None:
    try:
        template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError):
        return None
    return template if isinstance(template, str) else None
