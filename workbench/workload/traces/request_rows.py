"""Rows of requests as JSON readers collect them, and how single values are understood."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Literal, Protocol

import numpy as np

from workbench.workload.traces.table import MAX_TIME_S, MAX_TOKENS, Ledger, TokenSpans, TraceTable

DEFAULT_OUTPUT_TOKENS = 256
"""Asked for where a request does not say how much it wants; what `vllm bench serve --dataset-name custom` does."""


class Encoder(Protocol):
    """What a reader of text needs of a tokenizer."""

    @property
    def name(self) -> str: ...

    def encode(self, text: str) -> Sequence[int]: ...


def as_tokens(value: Any) -> int | None:
    """A number of tokens from 0; None where it is none."""
    if isinstance(value, str):
        try:
            value = float(value) if len(value) < 40 else None
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not (math.isfinite(value) and value.is_integer()):
        return None
    return int(value) if 0 <= value <= MAX_TOKENS else None


def as_time_s(value: Any, unit_s: float | None = 1.0) -> float | None:
    """Seconds from a number in units of `unit_s` (None: no number is taken) or from a date with a time.

    None where it is neither, and for negative numbers.
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()  # noqa: UP017
    if unit_s is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) * unit_s if 0 <= value * unit_s <= MAX_TIME_S else None


class RequestRows:
    """Mutable columns; `table()` ends the collection."""

    def __init__(self) -> None:
        self.times = array("d")
        self.inputs, self.outputs, self.lines = array("i"), array("i"), array("i")
        self.sessions, self.turns, self.failed = array("i"), array("i"), array("b")
        self.block_ids, self.block_offsets = array("q"), array("q", [0])
        self.token_ids = array("i")
        self.starts, self.ends = array("q"), array("q")

    def add(
        self,
        line: int,
        arrival_s: float,
        input_tokens: int,
        output_tokens: int,
        *,
        hash_ids: Sequence[int] = (),
        session: int = -1,
        turn: int = 0,
        failed: bool = False,
        span: tuple[int, int] = (0, 0),
    ) -> None:
        """One request."""
        self.times.append(arrival_s)
        self.inputs.append(input_tokens)
        self.outputs.append(output_tokens)
        self.lines.append(line)
        self.sessions.append(session)
        self.turns.append(turn)
        self.failed.append(failed)
        self.block_ids.extend(hash_ids)
        self.block_offsets.append(len(self.block_ids))
        self.starts.append(span[0])
        self.ends.append(span[1])

    def table(
        self,
        *,
        has_times: bool = True,
        tokenizer: str | None = None,
        block_tokens: int | None = None,
        rows_are: Literal["requests", "conversations"] = "requests",
    ) -> TraceTable:
        """The columns; `tokenizer` made `token_ids`, where there is text."""
        sessions = np.array(self.sessions, dtype=np.int32)
        is_in_session = bool((sessions >= 0).any())
        failed = np.array(self.failed, dtype=np.bool_)
        spans = None
        if tokenizer is not None:
            spans = TokenSpans(
                ids=np.array(self.token_ids, dtype=np.int32),
                starts=np.array(self.starts, dtype=np.int64),
                ends=np.array(self.ends, dtype=np.int64),
                tokenizer=tokenizer,
            )
        return TraceTable(
            arrival_s=np.array(self.times, dtype=np.float64),
            input_tokens=np.array(self.inputs, dtype=np.int32),
            output_tokens=np.array(self.outputs, dtype=np.int32),
            lines=np.array(self.lines, dtype=np.int32),
            has_times=has_times,
            rows_are=rows_are,
            failed=failed if failed.any() else None,
            session_index=sessions if is_in_session else None,
            turn=np.array(self.turns, dtype=np.int32) if is_in_session else None,
            tokens=spans,
            block_tokens=block_tokens,
            block_ids=np.array(self.block_ids, dtype=np.int64) if block_tokens is not None else None,
            block_offsets=np.array(self.block_offsets, dtype=np.int64) if block_tokens is not None else None,
        )


def note_breakage(breakage: str | None, line: int, ledger: Ledger) -> None:
    """Say where packed data broke off."""
    if breakage is not None:
        ledger.add(f"the file breaks off in or after this line ({breakage})", "warned", [line])
