"""Per-request figures, exactly as GLOSSARY section 1 defines them. Pure functions of the request table.

`nan` means "does not exist for this request": no token arrived, fewer than two tokens, never scheduled.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from workbench.metrics.records import FloatArray, IntArray, Outcome, RequestTable

BoolArray = npt.NDArray[np.bool_]


def token_counts(table: RequestTable) -> IntArray:
    """[n] token times per request."""
    return np.diff(table.token_offsets)


def first_token_s(table: RequestTable) -> FloatArray:
    """[n] time of the first output token, s."""
    return _token_time(table, table.token_offsets[:-1])


def last_token_s(table: RequestTable) -> FloatArray:
    """[n] time of the last output token, s."""
    return _token_time(table, table.token_offsets[1:] - 1)


def _token_time(table: RequestTable, positions: IntArray) -> FloatArray:
    if len(table.token_times_s) == 0:
        return np.full(len(table), np.nan)
    has_token = token_counts(table) > 0
    times = table.token_times_s[np.clip(positions, 0, len(table.token_times_s) - 1)]
    return np.where(has_token, times, np.nan)


def ttft_s(table: RequestTable) -> FloatArray:
    """[n] first token - intended arrival."""
    return first_token_s(table) - table.arrival_s


def ttft_service_s(table: RequestTable) -> FloatArray:
    """[n] first token - send time."""
    return first_token_s(table) - table.sent_s


def e2el_s(table: RequestTable) -> FloatArray:
    """[n] last token - intended arrival."""
    return last_token_s(table) - table.arrival_s


def e2el_service_s(table: RequestTable) -> FloatArray:
    """[n] last token - send time."""
    return last_token_s(table) - table.sent_s


def tpot_s(table: RequestTable) -> FloatArray:
    """[n] (last - first token) / (n - 1): the first token is excluded; nan for fewer than two tokens."""
    gaps = table.num_output_tokens - 1
    span = last_token_s(table) - first_token_s(table)
    return np.where(gaps >= 1, span / np.maximum(gaps, 1), np.nan)


def itl_s(table: RequestTable, rows: BoolArray | None = None) -> FloatArray:
    """Gaps between successive tokens of one request, pooled over requests (or over the selected `rows`)."""
    if len(table.token_times_s) < 2:
        return np.zeros(0)
    gaps = np.diff(table.token_times_s)
    counts = token_counts(table)
    within = np.ones(len(gaps), dtype=np.bool_)
    starts = table.token_offsets[:-1][counts > 0]
    within[starts[starts > 0] - 1] = False  # from one request's last token to the next one's first
    if rows is not None:
        within &= np.repeat(rows, counts)[1:]
    return np.asarray(gaps[within], dtype=np.float64)


def e2el_per_token_s(table: RequestTable) -> FloatArray:
    """[n] E2EL / output tokens."""
    return np.where(table.num_output_tokens > 0, e2el_s(table) / np.maximum(table.num_output_tokens, 1), np.nan)


def queue_s(table: RequestTable) -> FloatArray:
    """[n] first scheduled - arrived at the engine."""
    return table.first_scheduled_s - table.sent_s


def client_lag_s(table: RequestTable) -> FloatArray:
    """[n] send time - intended arrival; large values mean that the load generator held requests back."""
    return table.sent_s - table.arrival_s


def is_completed(table: RequestTable) -> BoolArray:
    """[n] answered in full."""
    return np.asarray(table.outcome == Outcome.COMPLETED)


def gaps_within(table: RequestTable, limit_s: float) -> tuple[IntArray, IntArray]:
    """[n] gaps between a request's tokens that are at most `limit_s`, and [n] all its gaps."""
    counts = token_counts(table)
    all_gaps = np.maximum(counts - 1, 0)
    within = np.concatenate([[0], np.cumsum(itl_s(table) <= limit_s)])
    ends = np.cumsum(all_gaps)
    return np.asarray(within[ends] - within[ends - all_gaps], dtype=np.int64), np.asarray(all_gaps, dtype=np.int64)


PER_REQUEST = {"ttft_s": ttft_s, "tpot_s": tpot_s, "e2el_s": e2el_s, "queue_s": queue_s}
"""Figures with one value per request, by their code names."""
JUDGED = {**PER_REQUEST, "e2el_per_token_s": e2el_per_token_s}
"""Those that an SLO may bind."""
