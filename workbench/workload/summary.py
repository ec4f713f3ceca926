"""What was really generated: realised rate, burstiness and lengths, and the fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from workbench.scenario.arrivals import (
    AllAtOnce,
    ArrivalSpec,
    ClosedLoop,
    ConstantArrivals,
    DiurnalArrivals,
    GammaArrivals,
    OnOffArrivals,
    PoissonArrivals,
    RampArrivals,
    StagesArrivals,
)
from workbench.scenario.schema import WorkloadSpec
from workbench.workload.account import ImportAccount
from workbench.workload.analysis import thirds
from workbench.workload.class_rows import ClampCounts
from workbench.workload.columns import Columns, FloatArray, IntArray
from workbench.workload.prompts import PromptSource
from workbench.workload.records import ClassSummary, ClosedLoopPacing, LengthSummary, WorkloadSummary
from workbench.workload.traces.table import ImportReport


def summarize_workload(
    spec: WorkloadSpec,
    columns: Columns,
    over_long: str,
    source: ImportReport | None,
    files: Mapping[str, ImportReport],
    max_model_len: int | None,
) -> WorkloadSummary:
    """Realised figures of the columns; `files` are the accounts of the classes' files."""
    times = columns.arrival_s
    is_timed = not isinstance(spec.arrivals, (AllAtOnce, ClosedLoop)) and len(times) > 2 and times[-1] > times[0]
    gaps = np.diff(times)
    return WorkloadSummary(
        num_requests=len(times),
        span_s=float(times[-1] - times[0]) if is_timed else None,
        asked_rate_per_s=_asked_rate(spec),
        rate_per_s=float(len(gaps) / (times[-1] - times[0])) if is_timed else None,
        cv=float(gaps.std() / gaps.mean()) if is_timed else None,
        classes={name: _class_summary(columns, number, name) for number, name in enumerate(columns.class_names)},
        over_long=over_long,
        account=_account(columns, source, files, f"input + output over max_model_len {max_model_len}"),
        source=source,
        files=dict(files),
        rate_drift=_rate_drift(times) if is_timed else None,
        num_conversations=int(columns.session_index.max(initial=-1)) + 1 if source is None else 0,
    )


def _account(
    columns: Columns, source: ImportReport | None, files: Mapping[str, ImportReport], over: str
) -> ImportAccount:
    """Rows of files where requests come from files, generated requests where they do not."""
    found = ImportAccount(read=0, used=0)
    for number, name in enumerate(columns.class_names):
        clamps = columns.clamps.get(name, ClampCounts())
        if name in files:
            found += files[name].account.without(clamps.num_rows_dropped, over)
        elif source is None or columns.clamps:
            count = int(np.count_nonzero(columns.class_index == number)) + clamps.num_dropped
            found += ImportAccount(read=count, used=count).without(clamps.num_dropped, over)
    if source is None:
        return found
    times = source.account
    return times if not columns.clamps else found + replace(times, read=times.read - times.used, used=0)


def _rate_drift(times: FloatArray) -> float | None:
    nothing = np.zeros(len(times), dtype=np.int64)
    rates = [part.rate_per_s for part in thirds(times, nothing, nothing)]
    known = [rate for rate in rates if rate is not None]
    return max(known) / min(known) - 1 if known and len(known) == len(rates) else None


def _asked_rate(spec: WorkloadSpec) -> float | None:
    """Of all arrivals together; None where a part states none, and where conversations make more of them."""
    processes = [kind.arrivals for kind in spec.classes if kind.arrivals is not None]
    rates = [asked_rate(process) for process in (spec.arrivals, *processes) if process is not None]
    if None in rates or any(kind.conversation is not None for kind in spec.classes):
        return None
    return sum(rate for rate in rates if rate is not None)


def asked_rate(arrivals: ArrivalSpec) -> float | None:
    """Mean rate that the scenario states, requests/s; None where it states none."""
    match arrivals:
        case ConstantArrivals() | PoissonArrivals() | GammaArrivals():
            return arrivals.rate
        case RampArrivals():
            return (arrivals.start_rate + arrivals.end_rate) / 2
        case StagesArrivals():
            total = sum(stage.duration for stage in arrivals.stages)
            return sum(stage.rate * stage.duration for stage in arrivals.stages) / total
        case OnOffArrivals():
            mass = arrivals.rate * arrivals.on + arrivals.off_rate * arrivals.off
            return mass / (arrivals.on + arrivals.off)
        case DiurnalArrivals():
            return arrivals.mean_rate
        case _:
            return None


def _class_summary(columns: Columns, number: int, name: str) -> ClassSummary:
    rows = columns.class_index == number
    clamps = columns.clamps.get(name, ClampCounts())
    return ClassSummary(
        num_requests=int(np.count_nonzero(rows)),
        input_tokens=summarize_lengths(columns.num_prompt_tokens[rows]),
        output_tokens=summarize_lengths(columns.max_output_tokens[rows]),
        num_raised=clamps.num_raised,
        num_lowered=clamps.num_lowered,
        num_clipped=clamps.num_clipped,
        num_dropped=clamps.num_dropped,
    )


def summarize_lengths(tokens: IntArray) -> LengthSummary | None:
    """Mean and percentiles; None for no rows."""
    if len(tokens) == 0:
        return None
    p50, p90, p95, p99 = np.percentile(tokens, [50, 90, 95, 99]).tolist()
    return LengthSummary(mean=float(tokens.mean()), p50=p50, p90=p90, p95=p95, p99=p99, max=int(tokens.max()))


def fingerprint(
    columns: Columns, prompts: PromptSource, pacing: ClosedLoopPacing | None, max_concurrency: int | None
) -> str:
    """sha256 over every column, the prompts' digest and the pacing."""
    digest = hashlib.sha256(repr((columns.class_names, pacing, max_concurrency)).encode())
    for column in (
        columns.class_index,
        columns.index_in_class,
        columns.arrival_s,
        columns.num_prompt_tokens,
        columns.max_output_tokens,
        columns.priority,
        columns.turn,
        columns.session_index,
        columns.think_time_s,
    ):
        digest.update(np.ascontiguousarray(column).tobytes())
    digest.update(prompts.fingerprint())
    return digest.hexdigest()
