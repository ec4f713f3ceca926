"""Which options a named version of vLLM has."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources

from ruamel.yaml import YAML


class UnknownOption(ValueError):
    """An option that the version does not have."""


@cache
def _versions() -> dict[str, frozenset[str]]:
    text = (resources.files(__package__ or "") / "vllm_options.yaml").read_text(encoding="utf-8")
    data = YAML(typ="safe").load(text)
    return {version: frozenset(entry["options"].split()) for version, entry in data["versions"].items()}


def list_versions() -> tuple[str, ...]:
    """In order of the data file, newest last."""
    return tuple(_versions())


def check_option(name: str, version: str) -> None:
    """Raise `UnknownOption` with the nearest name that the version knows; underscores count as dashes."""
    known = _versions().get(version)
    if known is None:
        raise UnknownOption(f"vllm_version: {version!r} has no stored options. Known: {', '.join(_versions())}")
    plain = name.removeprefix("--").replace("_", "-")
    if plain in known or plain.removeprefix("no-") in known:
        return
    near = difflib.get_close_matches(plain, known, n=1, cutoff=0.5)
    elsewhere = [other for other, options in _versions().items() if plain in options]
    hint = f"; the nearest is --{near[0]}" if near else ""
    hint += f"; vLLM {', '.join(elsewhere)} has it" if elsewhere else ""
    raise UnknownOption(f"vLLM {version} has no option --{plain}{hint}")
