"""Take a model's name apart: its owner, its checkpoint, and the weight type that its ending states."""

from __future__ import annotations

import re

_BITS = (
    (re.compile(r"w4a\d+|int4|uint4|[2-4]bits?|nvfp4\w*|mxfp4|fp4|nf4|int[23]|i?q[2-4]"), "int4"),
    (re.compile(r"fp8|mxfp[68]|ptpc"), "fp8"),
    (re.compile(r"w8a\d+|int8|[568]bits?|q[568]|eetq"), "int8"),
)
"""Words that state a weight type of the cost model and the memory model; the first that occurs in a name counts."""
_METHODS = re.compile(r"awq|gptq|bnb|bitsandbytes|gguf|ggml|hqq|aqlm|exl[23]|autoround|torchao")
_PLAIN = re.compile(r"bf16|fp?16|bfloat16|float16")
"""Words that state a method, which stores 4 bits unless another word says more."""
_NEUTRAL = re.compile(
    r"quantized|dynamic|static|block(wise)?|channel(wise)?|tensor(wise)?|kv|unsloth|mlx|gs?\d+|a?sym|actorder|dwq|"
    r"marlin|inc|ct|quark|modelopt|autofp8|int8mix|fp8kv|[kml]|xs|xl|[01]|smoothquant|i1|imat|\dx\d+"
)
_ROLES = re.compile(r"[-_](instruct|chat|base|it|preview|thinking)(?=$|[-_])")


def split_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Return (checkpoint in lower case without owner, words of its quantised ending): `Qwen3-8B-FP8-dynamic` ->
    `("qwen3-8b", ("fp8", "dynamic"))`."""
    bare = re.sub(r"\(.*?\)", "", name).strip().rstrip("/").lower().rpartition("/")[2]
    parts = re.split(r"([-_])", bare.replace("quantized.", "quantized-"))
    words, end = parts[::2], len(parts[::2])
    while end > 1 and _is_ending(words[end - 1]):
        end -= 1
    ending = words[end:]
    if not any(_is_statement(word) for word in ending):
        return bare, ()
    return "".join(parts[: 2 * end - 1]), tuple(ending)


def _is_statement(word: str) -> bool:
    return bool(
        _METHODS.fullmatch(word) or _PLAIN.fullmatch(word) or any(pattern.fullmatch(word) for pattern, _ in _BITS)
    )


def _is_ending(word: str) -> bool:
    return _is_statement(word) or bool(_NEUTRAL.fullmatch(word))


def weights_in_name(name: str) -> str | None:
    """Return the weight type that a name states: `Qwen2.5-7B-Instruct-AWQ` -> `int4`; None where it states none."""
    _, ending = split_name(name)
    words = re.sub(r"(\S) fp8 kv\b", r"\1", " ".join(ending)).split()  # FP8-KV alone: the weights are fp8 too
    if "fp8" in words and any(word.startswith("w8a8") for word in words):
        return "fp8"
    for word in words:
        kind = next((kind for pattern, kind in _BITS if pattern.fullmatch(word)), None)
        if kind is not None:
            return kind
    return "int4" if any(_METHODS.fullmatch(word) for word in words) else None


def same_checkpoint(checkpoint: str) -> str:
    """Return a key that spellings of one checkpoint share: without `meta-`, `-hf` and separators."""
    plain = re.sub(r"[-_]hf$", "", re.sub(r"^meta-", "", checkpoint))
    return re.sub(r"[-_ ]", "", plain)


def same_geometry(checkpoint: str) -> str:
    """Return a key that variants of one geometry share: also without the words of their role and a release date."""
    plain = _ROLES.sub("", re.sub(r"[-_]\d{4}$", "", _ROLES.sub("", checkpoint)))
    return same_checkpoint(plain)
