"""Which part of a trace is replayed, how fast, and how often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workbench.scenario.arrivals import TraceArrivals
from workbench.scenario.errors import ScenarioError
from workbench.workload.traces.policies import kept
from workbench.workload.traces.table import Ledger, TraceTable

_MINUTE_S = 60.0
_MAX_BINS = 1 << 24


def windowed(table: TraceTable, trace: TraceArrivals, ledger: Ledger) -> TraceTable:
    """The stated stretch of time, or the longest one that is busy enough; its times begin at its start."""
    start_s, end_s = trace.window_start, np.inf
    if trace.window_duration is not None:
        end_s = start_s + trace.window_duration
    if trace.window_min_rate > 0 and len(table):
        busy_start_s, busy_end_s = _busiest_stretch(table, trace.window_min_rate, start_s, end_s)
        start_s, end_s = max(start_s, busy_start_s), min(end_s, busy_end_s)
        ledger.note(f"window with at least {trace.window_min_rate:g}/s: {start_s:g} s to {end_s:g} s")
    if start_s == 0 and end_s == np.inf:
        return table
    table = kept(table, (table.arrival_s >= start_s) & (table.arrival_s < end_s), "outside the window", ledger)
    return replace(table, arrival_s=table.arrival_s - start_s)


def _busiest_stretch(table: TraceTable, min_rate: float, start_s: float, end_s: float) -> tuple[float, float]:
    """Longest run of minutes, counted from `start_s`, with at least `min_rate`. Empty where no minute has it."""
    times = table.arrival_s[(table.arrival_s >= start_s) & (table.arrival_s < end_s)]
    if len(times) == 0 or times[-1] - start_s > _MINUTE_S * _MAX_BINS:
        return start_s, start_s
    counts = np.bincount(((times - start_s) // _MINUTE_S).astype(np.int64))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], counts >= min_rate * _MINUTE_S, [False]])))
    if len(edges) == 0:
        return start_s, start_s
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins))
    return start_s + _MINUTE_S * float(begins[longest]), start_s + _MINUTE_S * float(ends[longest])


def looped(table: TraceTable, trace: TraceArrivals, num_requests: int | None, ledger: Ledger) -> TraceTable:
    """The rows `loop` times; between two rounds lies the mean gap. Prompts repeat and may hit a prefix cache."""
    if trace.loop == 1 or len(table) == 0:
        return table
    span_s = float(table.arrival_s[-1] - table.arrival_s[0])
    period_s = span_s * len(table) / max(len(table) - 1, 1)
    rounds = trace.loop if num_requests is None else min(trace.loop, -(-num_requests // len(table)))
    total = len(table) * rounds
    if total > 50_000_000:
        raise ScenarioError(f"workload.arrivals.loop: gives {total} requests (at most 50000000). Lower it")
    ledger.note(f"replayed {rounds} times, every {period_s:.6g} s")
    number = np.repeat(np.arange(rounds), len(table))
    result = table.take(np.tile(np.arange(len(table)), rounds))
    result = replace(result, arrival_s=result.arrival_s + number * period_s)
    if result.session_index is not None:
        shift = number * (int(result.session_index.max()) + 1)
        sessions = np.where(result.session_index >= 0, result.session_index + shift, -1).astype(np.int32)
        result = replace(result, session_index=sessions)
    return result


def scaled_times(table: TraceTable, trace: TraceArrivals, ledger: Ledger) -> TraceTable:
    """Arrival times times `time_scale`, or stretched to the stated mean rate."""
    scale = trace.time_scale
    if trace.rate is not None:
        span_s = float(table.arrival_s[-1] - table.arrival_s[0]) if len(table) else 0.0
        if span_s == 0:
            raise ScenarioError(f"{trace.path}: all rows have the same time, no rate can be made of it")
        scale = (len(table) - 1) / span_s / trace.rate
    if scale == 1.0:
        return table
    ledger.note(f"arrival times x {scale:.6g}" + (f" for {trace.rate:g} requests/s" if trace.rate is not None else ""))
    return replace(table, arrival_s=table.arrival_s * scale)
