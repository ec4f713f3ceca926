"""From logits to tokens. What a request gets depends on its own logits, parameters, seed and position only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch

from engine.request import Request


class Sampler:
    """Greedy (lowest id among equals), temperature, top-k and top-p sampling.

    Random draws come from a hash of (seed, position of the new token), not from a generator with state: the same
    request draws the same numbers whatever else is in the batch and however often it is preempted. The seed is the
    request's own, else the engine's seed together with the request id.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def sample(self, logits: torch.Tensor, requests: Sequence[Request], positions: Sequence[int]) -> list[int]:
        """logits [num_requests, vocab_size] and each new token's position -> one token id per request."""
        tokens: list[int] = logits.argmax(dim=-1).tolist()
        random_rows = [row for row, request in enumerate(requests) if request.sampling.temperature > 0]
        for row in random_rows:
            tokens[row] = self._draw(logits[row], requests[row], positions[row])
        return tokens

    def _draw(self, logits: torch.Tensor, request: Request, position: int) -> int:
        """Invert the cumulative distribution at a number in [0, 1); logits [vocab_size]."""
        sampling = request.sampling
        own_seed = sampling.seed
        key = f"{own_seed}" if own_seed is not None else f"{self._seed}/{request.request_id}"
        point = uniform(key, position)
        scaled = logits.double() / sampling.temperature
        token_ids: torch.Tensor | None = None
        if 0 < sampling.top_k < len(scaled):
            scaled, token_ids = scaled.topk(sampling.top_k)
        probabilities = scaled.softmax(dim=-1)
        if sampling.top_p < 1.0:
            if token_ids is None:
                probabilities, token_ids = probabilities.sort(descending=True, stable=True)
            # Keep a token if those before it do not reach top_p yet: the smallest sufficient set.
            before = probabilities.cumsum(dim=-1) - probabilities
            probabilities = probabilities[: int((before < sampling.top_p).sum())]
        cumulative = probabilities.cumsum(dim=-1)
        # cumulative[-1] is the kept mass, so scaling the point renormalises; `right` skips tokens of probability 0.
        index = int(torch.searchsorted(cumulative, cumulative[-1:] * point, right=True)[0])
        index = min(index, len(cumulative) - 1)
        return int(token_ids[index]) if token_ids is not None else index


def uniform(key: str, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    digest = hashlib.blake2b(f"{key}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def top_logprobs(logits: torch.Tensor, count: int) -> Mapping[int, float]:
    """The `count` most likely tokens of one row, most likely first; logits [vocab_size]."""
    values, token_ids = (
        logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1).topk(min(count, len(logits)))
    )
    return dict(zip(token_ids.tolist(), values.tolist(), strict=True))
