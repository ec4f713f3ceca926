"""A run in figures: the object `M` of the command-line contract, overall and per class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from workbench.metrics.attainment import LimitResult, SloPolicy, good_requests, limit_results
from workbench.metrics.definitions import PER_REQUEST, BoolArray, is_completed, itl_s
from workbench.metrics.records import FloatArray, Outcome, RequestTable, RunRecord
from workbench.metrics.statistics import PERCENTS, Statistics, describe, min_samples
from workbench.metrics.windows import Window, measurement_window

LATENCY_METRICS = ("ttft_s", "tpot_s", "itl_s", "e2el_s", "queue_s")
SCALAR_METRICS = (
    "num_requests",
    "num_completed",
    "num_failed",
    "duration_s",
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "slo_attainment",
    "goodput_rps",
    "num_preemptions",
    "kv_usage_mean",
    "kv_usage_max",
    "prefix_hit_rate",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of the requests sent in the window. None = absent, never 0 in its place. All numbers are finite.

    Latencies describe completed requests; the others count in `slo_attainment`.
    """

    num_requests: int
    """Issued: completed + failed (error, refused, unfinished)."""
    num_completed: int
    num_failed: int
    duration_s: float
    """Of the window."""
    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    slo_attainment: float | None
    goodput_rps: float | None
    num_preemptions: int | None
    kv_usage_mean: float | None
    """Weighted by step duration. Of the whole engine: None per class."""
    kv_usage_max: float | None
    prefix_hit_rate: float | None
    ttft_s: Statistics
    tpot_s: Statistics
    itl_s: Statistics
    e2el_s: Statistics
    queue_s: Statistics

    def to_dict(self) -> dict[str, Any]:
        """The object `M`: JSON types only."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.to_dict() if isinstance(value, Statistics) else value for name, value in values.items()}

    def value(self, name: str) -> float | None:
        """A figure by name: `goodput_rps`, `ttft_s.p95`. Raises `KeyError` for an unknown name."""
        head, _, statistic = name.partition(".")
        if head not in {field.name for field in fields(self)}:
            raise KeyError(name)
        found = getattr(self, head)
        if isinstance(found, Statistics) != bool(statistic) or (statistic and not hasattr(found, statistic)):
            raise KeyError(name)
        value = getattr(found, statistic) if statistic else found
        return None if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """All figures of one run."""

    window: Window
    overall: Metrics
    classes: Mapping[str, Metrics]
    limits: tuple[LimitResult, ...]
    """Each SLO limit judged on its own."""
    too_few: tuple[str, ...]
    """Statistics that rest on too few samples, for example `ttft_s.p99`; `long: ttft_s.p99` for one class."""

    @property
    def meets_slo(self) -> bool | None:
        """Every limit holds; None without an SLO."""
        return all(result.is_met for result in self.limits) if self.limits else None


def summarize(record: RunRecord, policy: SloPolicy | None = None, window: Window | None = None) -> RunSummary:
    """Figures of `record` within `window` (default: the whole run)."""
    policy = policy if policy is not None else SloPolicy()
    window = window if window is not None else measurement_window(record)
    table = record.requests
    inside = window.holds_requests(table)
    columns = _Columns.of(table, policy)
    overall = _metrics(record, columns, inside, window, whole_engine=True)
    classes = {
        name: _metrics(record, columns, inside & (table.class_index == number), window, whole_engine=False)
        for number, name in enumerate(table.class_names)
    }
    too_few = _too_few(overall)
    if len(classes) > 1:
        too_few += [f"{name}: {flag}" for name, metrics in classes.items() for flag in _too_few(metrics)]
    return RunSummary(
        window=window,
        overall=overall,
        classes=classes,
        limits=tuple(limit_results(table, policy, inside)),
        too_few=tuple(too_few),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """What every selection of rows needs, computed once."""

    completed: BoolArray
    good: BoolArray | None
    figures: Mapping[str, FloatArray]

    @classmethod
    def of(cls, table: RequestTable, policy: SloPolicy) -> _Columns:
        return cls(
            completed=is_completed(table),
            good=good_requests(table, policy) if policy.has_limits(table.class_names) else None,
            figures={name: figure(table) for name, figure in PER_REQUEST.items()},
        )


def _metrics(record: RunRecord, columns: _Columns, rows: BoolArray, window: Window, *, whole_engine: bool) -> Metrics:
    table = record.requests
    done = rows & columns.completed
    num_requests, num_completed = int(np.count_nonzero(rows)), int(np.count_nonzero(done))
    output_tokens = int(table.num_output_tokens[done].sum())
    prompt_tokens = int(table.num_prompt_tokens[done].sum())
    num_good = None if columns.good is None else int(np.count_nonzero(columns.good & rows))
    usage_mean, usage_max = _kv_usage(record, window) if whole_engine else (None, None)
    return Metrics(
        num_requests=num_requests,
        num_completed=num_completed,
        num_failed=num_requests - num_completed,
        duration_s=window.duration_s,
        requests_per_s=_per_second(num_completed, window),
        output_tokens_per_s=_per_second(output_tokens, window),
        total_tokens_per_s=_per_second(prompt_tokens + output_tokens, window),
        slo_attainment=num_good / num_requests if num_good is not None and num_requests else None,
        goodput_rps=None if num_good is None else _per_second(num_good, window),
        num_preemptions=_num_preemptions(table, rows),
        kv_usage_mean=usage_mean,
        kv_usage_max=usage_max,
        prefix_hit_rate=_hit_rate(record, rows, whole_engine=whole_engine),
        itl_s=describe(itl_s(table, done)),
        **{name: describe(values[done]) for name, values in columns.figures.items()},
    )


def _per_second(amount: int, window: Window) -> float | None:
    return amount / window.duration_s if window.duration_s > 0 else None


def _num_preemptions(table: RequestTable, rows: BoolArray) -> int | None:
    counts = table.num_preemptions[rows]
    known = counts[counts >= 0]
    return int(known.sum()) if len(known) else None


def _kv_usage(record: RunRecord, window: Window) -> tuple[float | None, float | None]:
    """(mean weighted by step duration, max) of blocks with a reference / all blocks."""
    steps = record.steps
    inside = window.holds_steps(steps)
    if not inside.any():
        return None, None
    used = steps.num_blocks_in_use[inside]
    total = used + steps.num_free_blocks[inside]
    usage = used / np.maximum(total, 1)
    weights = (steps.end_s - steps.start_s)[inside]
    mean = np.average(usage, weights=weights) if weights.sum() > 0 else usage.mean()
    return float(mean), float(usage.max())


def _hit_rate(record: RunRecord, rows: BoolArray, *, whole_engine: bool) -> float | None:
    if record.prefix_queried_tokens == 0:
        return None
    if whole_engine:
        return record.prefix_hit_tokens / record.prefix_queried_tokens
    table = record.requests
    known = rows & (table.num_cached_tokens >= 0)
    queried = int(table.num_prompt_tokens[known].sum())
    return int(table.num_cached_tokens[known].sum()) / queried if queried else None


def _too_few(metrics: Metrics) -> list[str]:
    flags = []
    for name in LATENCY_METRICS:
        count = getattr(metrics, name).num_samples
        flags += [f"{name}.p{percent}" for percent in PERCENTS if 0 < count < min_samples(percent)]
    return flags


def count_outcomes(record: RunRecord) -> dict[Outcome, int]:
    """How many requests ended each way, whole run."""
    return {outcome: int(np.count_nonzero(record.requests.outcome == outcome)) for outcome in Outcome}
