"""What to say about a model that the catalogue does not have."""

from __future__ import annotations

import difflib
import re

from engine.catalog import list_models

_NOT_PER_HEAD = (
    (
        r"deepseek[-_]?(coder[-_]?)?(v[2-9]|r1)(?!.*(distill|qwen|llama))|kimi-(k\d|vl)|moonlight|glm-([5-9]|4\.7-flash)|minicpm3",
        "caches one latent per token (MLA)",
    ),
    (
        r"mamba|jamba|falcon-h|nemotron-(h|nano-\d+b-v2|3)|qwen3-next|qwen3\.[5-9]|rwkv|kimi-linear|granite-4[.\d]*-(h|tiny|small)",
        "has state-space layers",
    ),
    (r"gemma-?[34]|gpt-oss|llama-?4|ministral-8b|command-(a|r7b)", "mixes full and windowed layers"),
)
"""Names of families whose cache is not keys and values per head and token in every layer -> what it is instead."""


def advice_on(model: str) -> str:
    """Why the family cannot be sized, or where to find what can."""
    name = model.rpartition("/")[2].lower()
    for pattern, what in _NOT_PER_HEAD:
        if re.search(pattern, name):
            return f"This family {what}, which the memory model does not count: its figures would be wrong"
    known = {spec.name.rpartition("/")[2].lower(): spec.name for spec in list_models()}
    near = [known[each] for each in difflib.get_close_matches(name, known, n=3)]
    listed = f"Nearest known: {', '.join(near)}. " if near else ""
    return f"{listed}`workbench catalog models` lists them; a directory needs only the model's config.json"
