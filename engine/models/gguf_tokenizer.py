"""A `tokenizer.json` from the metadata of a GGUF file (byte-level BPE vocabularies)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_CONTROL = 3
"""GGUF's token type for special tokens."""
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLIT_PATTERNS = {"llama-bpe": _WORDS + r"\p{N}{1,3}" + _REST, "qwen2": _WORDS + r"\p{N}" + _REST}
"""GGUF's name of a pre-tokenizer -> the pattern it splits text with."""


def write_tokenizer(reader: Any, directory: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`; a vocabulary of another kind is left out with a warning.

    Without a tokenizer the model still runs on token ids.
    """
    from engine.models.gguf_import import field

    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        logger.warning("tokenizers is not installed: the converted model has no tokenizer")
        return
    splitter = str(field(reader, "tokenizer.ggml.pre", "default"))
    is_byte_level = field(reader, "tokenizer.ggml.model") == "gpt2"
    if not is_byte_level or splitter not in (
        "smollm",
        "default",
        "gpt-2",
        *_SPLIT_PATTERNS,
    ):
        logger.warning("the file's tokenizer (%s) is of no supported kind: the converted model has none", splitter)
        return
    tokens: list[str] = field(reader, "tokenizer.ggml.tokens")
    types: list[int] = field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    if splitter == "smollm":
        first: Any = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif splitter in _SPLIT_PATTERNS:
        from tokenizers import Regex

        first = pre_tokenizers.Split(Regex(_SPLIT_PATTERNS[splitter]), "isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_only])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"chat_template": field(reader, "tokenizer.chat_template")}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
