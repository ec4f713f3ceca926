"""How a request's tokens are chosen and when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import Any

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request."""

    max_tokens: int = 16
    """Most output tokens, >= 1."""
    temperature: float = 0.0
    """0 = greedy; otherwise logits are divided by it, >= 0."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this, in (0, 1]."""
    top_k: int = 0
    """Keep this many most likely tokens; 0 = all."""
    seed: int | None = None
    """Makes sampling repeatable whatever else is in the batch. None: derived from the engine's seed and request id."""
    stop_token_ids: tuple[int, ...] = ()
    """End after one of these, which stays in the output."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence token, so that the output length is as asked."""
    n: int = 1
    """Parallel samples of one prompt, >= 1; they share its blocks."""
    num_logprobs: int = 0
    """Report the log probabilities of this many most likely tokens with each step, >= 0."""

    def __post_init__(self) -> None:
        """Numbers of other kinds (NumPy's) become Python's own. Raises `ConfigError` for what is no such number."""
        for name in _WHOLE:
            value = getattr(self, name)
            if type(value) is not int and not (name == "seed" and value is None):
                object.__setattr__(self, name, _whole(name, value))
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if type(value) is not float:
                object.__setattr__(self, name, _number(name, value))
        if type(self.stop_token_ids) is not tuple or self.stop_token_ids:
            object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        for name, ok, rule in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "over 0 and at most 1"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("n", self.n >= 1, "at least 1"),
            ("num_logprobs", self.num_logprobs >= 0, "at least 0"),
        ):
            if not ok:
                raise ConfigError(f"{name}: must be {rule} (got {getattr(self, name)!r})")


_WHOLE = ("max_tokens", "top_k", "seed", "n", "num_logprobs")


def _whole(name: str, value: Any) -> int:
    try:
        return int(index(value))
    except TypeError:
        raise ConfigError(f"{name}: must be a whole number (got {value!r})") from None


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name}: must be a number (got {value!r})") from None


def _token_ids(name: str, values: Any) -> tuple[int, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigError(f"{name}: must be a sequence of token ids (got {values!r})")
    return tuple(_whole(name, value) for value in values)
