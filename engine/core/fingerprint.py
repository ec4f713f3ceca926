"""One number for a whole sequence of scheduling decisions.

Two runs with equal fingerprints scheduled the same requests for the same number of tokens in the same steps; a
parameter in which they differ changed nothing. Requests enter by order of arrival, not by id or block, so that runs
of different pools and block sizes can be equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from engine.request import Request


class DecisionFingerprint:
    """Running hash over the decisions of a scheduler.

    A step in which every running request decodes one token is implied by the steps before it; only what deviates
    (prefill chunks, admissions, preemptions, requests left out, endings) is hashed, with its step number.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._ordinals: dict[str, int] = {}
        self._num_entered = 0
        self._ended: list[int] = []
        self._last_count = 0

    def enter(self, request: Request) -> None:
        self._ordinals[request.request_id] = self._num_entered
        self._num_entered += 1

    def leave(self, request: Request) -> None:
        self._ended.append(self._ordinals.pop(request.request_id))

    def add_step(
        self,
        step_index: int,
        num_requests: int,
        requests: Sequence[Request],
        new_tokens: Sequence[int],
        preempted: Sequence[str],
        prefill_tokens: int,
    ) -> None:
        """`num_requests` counts those of `requests` and the steady decodes, which are implied."""
        if not (prefill_tokens or preempted or self._ended) and num_requests == self._last_count:
            return
        ordinals = self._ordinals
        # Decodes are told apart from the others by their number alone; who they are follows from the history.
        chunks = (
            [(ordinals[r.request_id], n) for r, n in zip(requests, new_tokens, strict=True) if n > 1]
            if prefill_tokens
            else []
        )
        event = (step_index, num_requests, prefill_tokens, chunks, [ordinals[i] for i in preempted], self._ended)
        self._hash.update(repr(event).encode())
        self._ended = []
        self._last_count = num_requests

    def hexdigest(self) -> str:
        """32 hexadecimal digits; may be asked at any time."""
        return self._hash.hexdigest()
