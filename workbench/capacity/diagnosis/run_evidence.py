"""Evidence from a run's own records."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.capacity.concurrency import max_concurrency
from workbench.capacity.diagnosis.evidence import (
    Admission,
    Blocking,
    FleetFacts,
    Limits,
    Preemptions,
    Timeline,
    Traffic,
)
from workbench.metrics.attainment import LimitResult
from workbench.metrics.definitions import client_lag_s, is_completed, ttft_s
from workbench.metrics.records import FloatArray, RequestTable, RunRecord, StepTable
from workbench.metrics.saturation import slowdown_of
from workbench.metrics.summary import RunSummary

_SAMPLES = 60
_LONG_FACTOR = 8
_FEWEST = 5
_BATCH_SHARE = 0.01
"""Share of a run's time in which a batch may arrive."""


def limits_of_run(engine: Mapping[str, Any], stated: Mapping[str, Any], target: Mapping[str, Any]) -> Limits:
    """Read an engine's limits: `engine` as resolved, `stated` and `target` as the user wrote them."""
    blocks, window, size = engine.get("num_blocks"), engine.get("max_model_len"), engine.get("block_size")
    return Limits(
        max_num_seqs=engine.get("max_num_seqs"),
        is_cap_stated="max_num_seqs" in stated,
        max_num_batched_tokens=engine.get("max_num_batched_tokens"),
        max_model_len=window,
        block_size=size,
        num_blocks=blocks,
        is_num_blocks_stated=stated.get("num_blocks") is not None,
        kv_cache_dtype=target.get("kv_cache_dtype"),
        quantization=target.get("quantization"),
        tensor_parallel_size=target.get("tensor_parallel_size"),
        gpu_memory_utilization=engine.get("gpu_memory_utilization"),
        device_memory=engine.get("device_memory") if stated.get("device_memory") is not None else None,
        prefix_caching=engine.get("enable_prefix_caching"),
        reserves_max_len=engine.get("kv_policy") == "contiguous",
        full_len_concurrency=max_concurrency(blocks, window, size) if blocks and window and size else None,
    )


def fleet_of(record: RunRecord) -> FleetFacts:
    """One engine where the record tells of no others."""
    facts, engine = record.fleet, record.engine
    if facts is None:
        return FleetFacts()
    scaling = [engine.get("autoscaling"), *(pool.get("autoscaling") for pool in engine.get("pools") or ())]
    return FleetFacts(
        num_replicas=int(facts["counts"][0][1]),
        rate_limit_per_s=(engine.get("rate_limit") or {}).get("requests_per_s"),
        has_pools=bool(engine.get("pools")),
        not_served=facts["not_served"],
        failures=tuple(f"{each['replica']} failed at {each['at_s']:.1f} s" for each in facts["failures"]),
        retry=str(engine.get("retry")),
        scales=any(scaling),
    )


def timeline_of(record: RunRecord) -> Timeline:
    """Step records as samples of equal time while requests arrive (over the whole run where all came at once)."""
    steps = record.steps
    if not len(steps):
        return Timeline()
    first, last = _arrivals(record.requests)
    begin = min(first, float(steps.start_s[0]))
    end = float(steps.end_s[-1]) if is_batch(record) else last
    edges = np.linspace(begin, end, _SAMPLES + 1)[1:]
    rows = np.clip(np.searchsorted(steps.start_s, edges, side="right") - 1, 0, len(steps) - 1)
    # Between steps the engine is empty: a sample after the end of the last step before it sees nothing.
    is_idle = (edges > steps.end_s[rows]) & (steps.num_waiting[rows] == 0)
    used = steps.num_blocks_in_use / np.maximum(steps.num_blocks_in_use + steps.num_free_blocks, 1)
    return Timeline(
        running=np.where(is_idle, 0.0, _peak_between(steps, begin, edges, steps.num_running)),
        waiting=np.where(is_idle, 0.0, steps.num_waiting[rows].astype(np.float64)),
        kv_usage=np.where(is_idle, 0.0, _peak_between(steps, begin, edges, used)),
    )


def is_batch(record: RunRecord) -> bool:
    """Everything arrived at once, or as good as."""
    first, last = _arrivals(record.requests)
    return last - first <= _BATCH_SHARE * record.duration_s


def _arrivals(table: RequestTable) -> tuple[float, float]:
    return (float(table.arrival_s.min()), float(table.arrival_s.max())) if len(table) else (0.0, 0.0)


def _peak_between(steps: StepTable, begin: float, edges: FloatArray, values: npt.NDArray[Any]) -> FloatArray:
    """Greatest value of the steps that start in each interval; that of the step before where none does."""
    bounds = np.searchsorted(steps.start_s, np.concatenate([[begin], edges]), side="right")
    found = [
        values[low:high].max() if high > low else values[max(low - 1, 0)] for low, high in itertools.pairwise(bounds)
    ]
    return np.asarray(found, dtype=np.float64)


def traffic_of(record: RunRecord, summary: RunSummary, client_cap: int | None) -> Traffic:
    table, overall = record.requests, summary.overall
    first, last = _arrivals(table)
    span = last - first
    totals = table.num_prompt_tokens + table.num_output_tokens
    missed = [result for result in summary.limits if not result.is_met]
    rationed = 0 if record.fleet is None else int(record.fleet["not_served"].get("rate_limit", 0))
    lag = client_lag_s(table)
    lag = lag[np.isfinite(lag)]
    return Traffic(
        num_requests=len(table),
        is_batch=is_batch(record),
        meets_slo=summary.meets_slo,
        missed=tuple(_describe(result) for result in missed),
        misses_tpot=any(result.limit.metric in ("tpot_s", "itl_s") for result in missed),
        misses_ttft=any(result.limit.metric == "ttft_s" and _is_missed_inside(result, rationed) for result in missed),
        arrival_rate=len(table) / span if span > 0 else None,
        completion_rate=completion_rate(record),
        busy_share=_busy_share(record.steps, first, last),
        slowdown=slowdown_of(table),
        prompt_p50=_percentile(table.num_prompt_tokens, 50),
        prompt_p99=_percentile(table.num_prompt_tokens, 99),
        total_mean=float(totals.mean()) if len(table) else None,
        total_p95=_percentile(totals, 95),
        total_max=_percentile(totals, 100),
        ttft_p50_s=overall.ttft_s.p50,
        ttft_p95_s=overall.ttft_s.p95,
        queue_p95_s=overall.queue_s.p95,
        tpot_p95_s=overall.tpot_s.p95,
        longest_prefill_step_share=_mixed_share(record.steps),
        client_lag_p99_s=float(np.percentile(lag, 99)) if len(lag) else None,
        is_client_capped=client_cap is not None,
        client_cap=client_cap,
    )


def _is_missed_inside(result: LimitResult, rationed: int) -> bool:
    """Also by those that the rate limit let in: what it refused never saw an engine."""
    return result.limit.is_mean or result.num_met < result.required_fraction * (result.num_issued - rationed)


def _describe(result: LimitResult) -> str:
    return f"{result.limit.name} is missed"


def completion_rate(record: RunRecord) -> float | None:
    """Completed requests per second of the whole run: what the target sustains while it has work."""
    done = int(np.count_nonzero(is_completed(record.requests)))
    return done / record.duration_s if record.duration_s > 0 else None


def admission_of(steps: StepTable) -> Admission | None:
    """Over busy steps in which something waits."""
    if not len(steps):
        return None
    busy = steps.num_scheduled_requests > 0
    waits = busy & (steps.num_waiting > 0)
    all_stops = np.asarray(steps.admission_stop)
    stops = all_stops[waits].tolist()
    total = max(1, int(waits.sum()))
    budget, blocked = waits & (all_stops == "token_budget"), waits & (all_stops == "kv_blocks")
    tokens = steps.num_scheduled_tokens[budget].sum()
    blocks = (steps.num_free_blocks + steps.num_blocks_in_use)[blocked]
    return Admission(
        shares={stop: stops.count(stop) / total for stop in dict.fromkeys(stops)},
        busy_shares={stop: stops.count(stop) / max(1, int(busy.sum())) for stop in dict.fromkeys(stops)},
        decode_share=float(1 - steps.num_prefill_tokens[budget].sum() / tokens) if tokens else None,
        blocked_free_share=float((steps.num_free_blocks[blocked] / blocks).mean()) if len(blocks) else None,
    )


def preemptions_of(record: RunRecord) -> Preemptions:
    computed = int(record.steps.num_scheduled_tokens.sum()) if len(record.steps) else 0
    known = record.requests.num_preemptions[record.requests.num_preemptions >= 0]
    return Preemptions(
        count=int(known.sum()) if len(known) else 0,
        recomputed_share=float(record.steps.num_recomputed_tokens.sum()) / computed if computed else None,
    )


def blocking_of(table: RequestTable) -> Blocking | None:
    """Short requests' time to first token beside the times at which long prompts are queued first or computed.

    None where no prompt is long: at least eight times the median, and over 1,000 tokens more.
    """
    lengths, first = table.num_prompt_tokens, ttft_s(table)
    seen = np.isfinite(first)
    if not seen.any():
        return None
    median = float(np.median(lengths[seen]))
    limit = max(_LONG_FACTOR * median, median + 1000)
    long, short = seen & (lengths >= limit), seen & (lengths <= median)
    if long.sum() < 1 or short.sum() < _FEWEST:
        return None
    start = np.where(np.isfinite(table.first_scheduled_s), table.first_scheduled_s, table.sent_s)
    busy = _union(start[long], (table.arrival_s + first)[long])
    begin, end = table.arrival_s[short], (table.arrival_s + first)[short]
    covered = np.array([_covered(busy, low, high) for low, high in zip(begin, end, strict=True)])
    waits = end - begin
    free = waits[covered <= 0.0]
    slow = waits >= np.percentile(waits, 90)
    return Blocking(
        short_ttft_p95_s=float(np.percentile(waits, 95)),
        short_ttft_free_s=float(np.median(free)) if len(free) >= _FEWEST else float(waits.min()),
        overlap=float(covered[slow].sum() / max(waits[slow].sum(), 1e-12)),
        long_tokens=int(limit),
        num_long=int(long.sum()),
        num_short=int(short.sum()),
    )


def _union(starts: FloatArray, ends: FloatArray) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for low, high in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def _covered(intervals: list[tuple[float, float]], low: float, high: float) -> float:
    return sum(max(0.0, min(high, end) - max(low, start)) for start, end in intervals)


def _mixed_share(steps: StepTable) -> float | None:
    decodes = steps.num_scheduled_tokens > steps.num_prefill_tokens
    time = steps.end_s - steps.start_s
    total = float(time[decodes].sum())
    return float(time[decodes & (steps.num_prefill_tokens > 0)].sum()) / total if total > 0 else None


def _busy_share(steps: StepTable, first_s: float, last_s: float) -> float | None:
    inside = steps.start_s < last_s
    if last_s <= first_s or not inside.any():
        return None
    ends = np.maximum.accumulate(steps.end_s[inside])  # steps in flight overlap
    idle = np.maximum(steps.start_s[inside][1:] - ends[:-1], 0.0).sum()
    idle += max(steps.start_s[0] - first_s, 0.0) + max(last_s - ends[-1], 0.0)
    return float(1.0 - idle / (last_s - first_s))


def _percentile(values: npt.NDArray[Any], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None
