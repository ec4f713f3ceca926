"""One request inside the engine: its tokens, its place in the state machine, its block table.

Owned by the scheduler once added; nobody else changes it. Legal moves: WAITING -> RUNNING -> FINISHED_*;
RUNNING -> PREEMPTED -> RUNNING; WAITING or PREEMPTED -> FINISHED_ABORTED.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import Enum
from operator import index
from typing import Any, SupportsFloat, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.sampling_params import SamplingParams


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"
    FINISHED_ERROR = "error"

    @property
    def is_finished(self) -> bool:
        return self.name.startswith("FINISHED")

    @property
    def finish_reason(self) -> str | None:
        """`stop`, `length`, `abort` or `error`; None while unfinished."""
        return self.value if self.is_finished else None


TokenIds: TypeAlias = "Sequence[int] | npt.NDArray[np.int32] | array[int]"


def token_array(token_ids: TokenIds) -> array[int]:
    """Token ids as 4 bytes each, in memory of their own. Raises `ConfigError` for what is no row of 32-bit integers."""
    if isinstance(token_ids, np.ndarray):
        if token_ids.ndim != 1:
            raise ConfigError(f"token ids: must be one row of whole numbers (got an array of shape {token_ids.shape})")
        return token_array(token_ids.tolist()) if token_ids.dtype != np.int32 else array("i", token_ids.tobytes())
    given: object = token_ids
    if isinstance(given, (str, bytes, bytearray)):  # whose bytes would be taken for the numbers themselves
        raise ConfigError(f"token ids: must be whole numbers (got {given!r:.40}). Encode a text first")
    try:
        return array("i", token_ids)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(_refusal(token_ids)) from None


def _refusal(token_ids: object) -> str:
    """What is wrong with these."""
    if not isinstance(token_ids, Iterable):
        return f"token ids: must be a sequence of whole numbers (got {token_ids!r})"
    low, high = -(2**31), 2**31 - 1
    wrong = [each for each in token_ids if not (isinstance(each, SupportsIndex) and low <= each.__index__() <= high)]
    return f"token ids: must be whole numbers of 32 bits (got {wrong[0] if wrong else token_ids!r:.40})"


_FIELDS = (
    "admission_order",
    "all_token_ids",
    "arrival_order",
    "arrival_time_s",
    "block_hashes",
    "block_ids",
    "cache_salt",
    "decode_until",
    "eos_token_id",
    "length_limit",
    "max_tokens",
    "num_cached_tokens",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_preemptions",
    "num_prompt_tokens",
    "num_registered_blocks",
    "num_stale_outputs",
    "num_tokens",
    "priority",
    "request_id",
    "sampling",
    "shares_tail",
    "status",
    "steady_from",
    "steady_since",
    "steady_until",
    "stop_token_ids",
)


class Request:
    """Mutable state of one request.

    Invariants: `num_tokens == len(all_token_ids)`; `num_computed_tokens <= num_tokens + num_output_placeholders`;
    position p lives in `block_ids[p // block_size]`; `block_hashes[i]` belongs to the i-th full block.
    """

    __slots__ = _FIELDS

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        *,
        arrival_time_s: SupportsFloat = 0.0,
        priority: SupportsIndex = 0,
        eos_token_id: int | None = None,
        cache_salt: str = "",
    ) -> None:
        self.request_id = request_id
        self.sampling = sampling
        self.arrival_time_s = float(arrival_time_s)
        self.arrival_order = 0  # set by the scheduler; breaks ties of arrival_time_s
        self.priority: int = index(priority)
        self.cache_salt = cache_salt
        self.max_tokens = sampling.max_tokens
        self.length_limit = 0  # num_tokens at which it ends for length; set by the scheduler, which knows the model
        self.decode_until = 0  # while num_computed_tokens is below: a decode that needs no block work (scheduler's)
        self.eos_token_id = None if sampling.ignore_eos else eos_token_id
        self.stop_token_ids = frozenset(sampling.stop_token_ids)
        self.all_token_ids = token_array(prompt_token_ids)
        self.num_prompt_tokens = self.num_tokens = len(self.all_token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None  # prefix hit at first admission; None before it
        self.num_output_placeholders = 0  # tokens scheduled but not back yet (asynchronous mode only)
        self.num_stale_outputs = 0  # of these, scheduled before a preemption
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.admission_order = -1  # grows along `running`; set by the scheduler
        self.steady_from = -1  # see `core.steady`: the step that the counters stand at; -1 = not steady
        self.steady_since = self.steady_until = -1  # first and one after the last step as a steady decode
        self.block_ids: list[int] = []
        self.shares_tail = False  # a fork shares its last block with another request
        self.block_hashes: list[bytes] = []
        self.num_registered_blocks = 0  # leading full blocks already entered in the prefix index

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.all_token_ids[self.num_prompt_tokens :].tolist()

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and pickles: machine code has no other way to make one without its arguments."""
        state = {name: getattr(self, name) for name in _FIELDS}
        return Request, (self.request_id, (), self.sampling), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.name}, tokens={self.num_tokens}, "
            f"computed={self.num_computed_tokens}, blocks={len(self.block_ids)})"
        )
