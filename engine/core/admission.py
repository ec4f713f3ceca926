"""Policies that may hold back admissions, asked once per waiting request at the head of the queue.

The default set is empty: vLLM V1 admits whatever fits. Each class here is one option of older servers or one baseline
of the field; the scheduler consults them all and stops admitting at the first that says no.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.config import SchedulerConfig
from engine.request import Request


class AdmissionPolicy(Protocol):
    """Decides whether the head of the waiting queue may be admitted now, were there room."""

    def begin_step(self, running: Sequence[Request], waiting: int, now_s: float) -> None:
        """A step is about to be planned. `now_s` is the time that the owner of the clock passed to `schedule`."""
        ...

    def admits(self, request: Request, running: Sequence[Request], num_pending: int) -> bool:
        """May `request`, with `num_pending` tokens to compute, join `running`?"""
        ...

    def end_step(self, has_prefill: bool, now_s: float) -> None:
        """The output of a step came back."""
        ...

    def holds_finished(self) -> bool:
        """Do finished requests keep their seats and blocks until the whole batch has ended?"""
        ...


class _Policy:
    """Neutral answers, for policies that care about one question only."""

    def begin_step(self, running: Sequence[Request], waiting: int, now_s: float) -> None:
        pass

    def admits(self, request: Request, running: Sequence[Request], num_pending: int) -> bool:
        return True

    def end_step(self, has_prefill: bool, now_s: float) -> None:
        pass

    def holds_finished(self) -> bool:
        return False


class BatchToCompletion(_Policy):
    """`dynamic` batching: a batch is formed from what waits when the engine is idle, and runs to its own end.

    With `pad_to_longest` it is `static` batching: members that end early keep seat and blocks until the longest ends.
    """

    def __init__(self, *, pad_to_longest: bool) -> None:
        self._pads = pad_to_longest
        self._forming = False

    def begin_step(self, running: Sequence[Request], waiting: int, now_s: float) -> None:
        self._forming = not running

    def admits(self, request: Request, running: Sequence[Request], num_pending: int) -> bool:
        return self._forming

    def holds_finished(self) -> bool:
        return self._pads


class DelayFactor(_Policy):
    """Wait `factor` times the last prompt step's duration before admitting again, so that prompts gather.

    vLLM V0's `scheduler_delay_factor`. An idle engine always admits.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._begin_s = 0.0
        self._prompt_duration_s = 0.0
        self._last_prompt_s = float("-inf")
        self._opens = True

    def begin_step(self, running: Sequence[Request], waiting: int, now_s: float) -> None:
        self._begin_s = now_s
        self._opens = not running or now_s - self._last_prompt_s >= self._factor * self._prompt_duration_s

    def admits(self, request: Request, running: Sequence[Request], num_pending: int) -> bool:
        return self._opens

    def end_step(self, has_prefill: bool, now_s: float) -> None:
        if has_prefill:
            self._prompt_duration_s = now_s - self._begin_s
            self._last_prompt_s = now_s


class PartialPrefillLimit(_Policy):
    """At most `most` prompts partly computed at once, and of these at most `most_long` long ones.

    A prompt is long when more than `long_threshold` tokens remain to be computed.
    """

    def __init__(self, most: int | None, most_long: int | None, long_threshold: int) -> None:
        self._most = most
        self._most_long = most_long
        self._long_threshold = long_threshold

    def admits(self, request: Request, running: Sequence[Request], num_pending: int) -> bool:
        partial = [r.num_tokens - r.num_computed_tokens for r in running if r.num_computed_tokens < r.num_tokens - 1]
        if self._most is not None and len(partial) >= self._most:
            return False
        if self._most_long is None or num_pending <= self._long_threshold:
            return True
        return sum(pending > self._long_threshold for pending in partial) < self._most_long


def admission_policies(config: SchedulerConfig) -> tuple[AdmissionPolicy, ...]:
    """The policies that a configuration asks for, in the order in which they are consulted."""
    policies: list[AdmissionPolicy] = []
    if config.batching != "continuous":
        policies.append(BatchToCompletion(pad_to_longest=config.batching == "static"))
    if config.scheduler_delay_factor > 0:
        policies.append(DelayFactor(config.scheduler_delay_factor))
    if config.max_num_partial_prefills is not None or config.max_long_partial_prefills is not None:
        policies.append(
            PartialPrefillLimit(
                config.max_num_partial_prefills,
                config.max_long_partial_prefills,
                config.long_prefill_token_threshold,
            )
        )
    return tuple(policies)
