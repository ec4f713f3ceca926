"""Errors of the engine.

    EngineError
    ├── ConfigError(ValueError)      a configuration that cannot be: unknown name, value out of range, fields that clash
    │   └── MemoryBudgetError        weights and activations leave no room for a usable KV cache
    ├── RequestRefused(ValueError)   this request can never be served by this engine; others can
    ├── ModelLoadError               a model directory or file cannot be used
    ├── OutOfMemory                  the device ran out of memory while a step ran
    └── IntegrityError               a broken invariant of block pool or scheduler: a bug, never the user's fault

Every message names the rule, the value and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EngineError(Exception):
    """Base of all errors that `engine` raises on purpose."""


class ConfigError(EngineError, ValueError):
    """A configuration that cannot be."""


class MemoryBudgetError(ConfigError):
    """Weights and activations leave too little memory for the KV cache."""


class RequestRefused(EngineError, ValueError):
    """A request that this engine can never serve."""


class ModelLoadError(EngineError):
    """A model directory or file that cannot be used."""


class OutOfMemory(EngineError):
    """The device ran out of memory during a step."""


class IntegrityError(EngineError):
    """A broken invariant."""


def suggest(name: str, known: Iterable[str]) -> str:
    """`did you mean X?` for the nearest known name, else the list of known names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
