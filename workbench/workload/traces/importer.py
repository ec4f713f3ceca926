"""From a file to the rows a run issues, with every policy stated."""

from __future__ import annotations

import numpy as np

from workbench.scenario.arrivals import OverLong, RequestFile, TraceArrivals
from workbench.scenario.errors import ScenarioError
from workbench.workload.traces.policies import kept, scaled_lengths, usable_rows, within_model
from workbench.workload.traces.reading import read_requests
from workbench.workload.traces.replay import looped, scaled_times, windowed
from workbench.workload.traces.table import ImportReport, Ledger, TraceTable


def import_trace(
    trace: TraceArrivals,
    *,
    max_model_len: int | None = None,
    over_long: OverLong = "drop",
    num_requests: int | None = None,
    duration_s: float | None = None,
) -> tuple[TraceTable, ImportReport]:
    """Rows to replay: arrivals from 0, scaled; lengths scaled and within `max_model_len` (None = no limit).

    `num_requests` and `duration_s` (of the replay, after scaling) bound it. Raises `ScenarioError` for a file that
    cannot be used, for no rows left, and where a policy says `fail`.
    """
    read = read_requests(trace)
    ledger, table = read.ledger.copy(), read.table
    if len(table) and not table.has_times:
        hint = "Name their column (columns.arrival), or name the file in" if trace.columns else "Name it in"
        raise ScenarioError(
            f"{trace.path}: {read.format} has no arrival times to replay. {hint} workload.classes as file: "
            "and choose arrivals, for example {kind: poisson, rate: 1}"
        )
    _check_rows(table, trace, ledger)
    table = windowed(table, trace, ledger)
    table = usable_rows(table, trace, ledger)
    table = scaled_lengths(table, trace, ledger)
    if max_model_len is not None:
        table = within_model(table, trace, max_model_len, over_long, ledger)
    if num_requests is not None and num_requests < len(table):
        keep = np.arange(len(table)) < num_requests
        table = kept(table, keep, "beyond workload.num_requests", ledger)
    table = scaled_times(table, trace, ledger)
    if duration_s is not None:
        table = kept(table, table.arrival_s < duration_s, "after workload.duration", ledger)
    num_used = table.num_rows()
    table = looped(table, trace, num_requests, ledger)
    if len(table) > (num_requests or len(table)):
        table = table.take(np.arange(num_requests or 0))
    if duration_s is not None and len(table) and table.arrival_s[-1] >= duration_s:
        table = table.take(np.flatnonzero(table.arrival_s < duration_s))
    _check_rows(table, trace, ledger)
    return table, _report(trace, read.format, num_used, ledger)


def import_requests(file: RequestFile) -> tuple[TraceTable, ImportReport]:
    """Rows of a class's file: lengths, and prompts where the file has them; times are not looked at."""
    read = read_requests(file)
    ledger = read.ledger.copy()
    table = scaled_lengths(usable_rows(read.table, file, ledger), file, ledger)
    _check_rows(table, file, ledger)
    return table, _report(file, read.format, table.num_rows(), ledger)


def _report(file: RequestFile, name: str, num_used: int, ledger: Ledger) -> ImportReport:
    return ImportReport(
        path=str(file.path),
        format=name,
        num_read=ledger.num_read,
        num_used=num_used,
        problems=ledger.problems(),
        notes=tuple(ledger.notes),
    )


def _check_rows(table: TraceTable, file: RequestFile, ledger: Ledger) -> None:
    if len(table):
        return
    reasons = "; ".join(problem.describe() for problem in ledger.problems())
    if ledger.num_read == 0:
        raise ScenarioError(f"{file.path}: the trace is empty: no rows below its header. {reasons}".rstrip(" ."))
    raise ScenarioError(f"{file.path}: none of the {ledger.num_read} rows can be used. {reasons}")
