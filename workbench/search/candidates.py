"""Configurations worth trying first: from arithmetic, engines' defaults and published starting points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_SHARE = 0.25
"""Of the trials asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """What arithmetic needs to know of a load and of the memory it finds."""

    mean_tokens: float
    """Prompt + output of a request."""
    p95_tokens: float
    mean_prompt_tokens: float
    kv_tokens: int | None
    """Positions in the default configuration's KV cache; None where it is not known before a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Values of some parameters, and why."""

    params: Mapping[str, Any]
    source: str


def candidates(shape: LoadShape, default: Mapping[str, Any], num_trials: int) -> list[Candidate]:
    """The most promising first, at most a quarter of the trials; `default` fills in what one does not say.

    A parameter that is not searched keeps no candidate from being tried: it is left out of it.
    """
    found: list[Candidate] = []
    for candidate in (*_by_arithmetic(shape), *_published(shape), *_engine_defaults()):
        params = {name: value for name, value in candidate.params.items() if name in default}
        params = dict(default) | params
        if params != dict(default) and all(params != other.params for other in found):
            found.append(Candidate(params=params, source=candidate.source))
    return found[: max(1, int(num_trials * MOST_SHARE))]


def _by_arithmetic(shape: LoadShape) -> Iterator[Candidate]:
    """As many sequences as the cache holds, and a budget that a few prompts fill."""
    if shape.kv_tokens is None:
        return
    for what, tokens, prompts in (("P95", shape.p95_tokens, 4), ("mean", shape.mean_tokens, 16)):
        seqs = max(1, int(shape.kv_tokens / max(tokens, 1.0)))
        yield Candidate(
            params={
                "max_num_seqs": seqs,
                "max_num_batched_tokens": max(seqs, int(prompts * shape.mean_prompt_tokens)),
            },
            source=f"KV cache / {what} length = {seqs} sequences; budget of {prompts} mean prompts",
        )


def _published(shape: LoadShape) -> Iterator[Candidate]:
    """Starting points of a practitioner's write-up on vLLM, by length of the prompts (docs/search.md)."""
    table = [
        (1024.0, 128, 8192, "short questions"),
        (4096.0, 64, 8192, "medium"),
        (float("inf"), 32, 4096, "long documents"),
    ]
    for longest, seqs, budget, what in table:
        if shape.mean_prompt_tokens <= longest:
            yield Candidate(
                params={"max_num_seqs": seqs, "max_num_batched_tokens": budget},
                source=f"published starting point for {what}",
            )
            return


def _engine_defaults() -> Sequence[Candidate]:
    """Of vLLM's server: below 70 GiB of device memory (and A100), and above."""
    return (
        Candidate(params={"max_num_seqs": 256, "max_num_batched_tokens": 2048}, source="vLLM's default, smaller GPUs"),
        Candidate(params={"max_num_seqs": 1024, "max_num_batched_tokens": 8192}, source="vLLM's default, large GPUs"),
    )
