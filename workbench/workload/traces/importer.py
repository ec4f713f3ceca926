"""From a trace file to the rows a replay issues, with every policy stated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workbench.scenario.arrivals import OverLong, TraceArrivals
from workbench.scenario.errors import ScenarioError
from workbench.workload.traces.formats import Mooncake, detect_format
from workbench.workload.traces.mooncake_reader import read_mooncake_trace
from workbench.workload.traces.table import BoolArray, ImportReport, Ledger, TraceTable


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
    known = detect_format(trace.path, trace.format, trace.columns)
    ledger = Ledger()
    if isinstance(known, Mooncake):
        table = read_mooncake_trace(trace.path, known, ledger)
    else:
        from workbench.workload.traces.csv_reader import read_csv_trace  # pandas: slow to import, needed here only

        table = read_csv_trace(trace.path, known, ledger)
    if len(table) == 0:
        raise ScenarioError(_nothing(trace, ledger))
    table, notes = _sorted(table)
    table = _within_window(table, trace, ledger)
    table = _with_output(table, trace, ledger)
    table = _scaled(table, trace, notes)
    if max_model_len is not None:
        table = _within_model(table, trace, max_model_len, over_long, ledger)
    if duration_s is not None:
        table = _kept(table, table.arrival_s < duration_s, "after workload.duration", ledger)
    if num_requests is not None:
        table = _kept(table, np.arange(len(table)) < num_requests, "beyond workload.num_requests", ledger)
    if len(table) == 0:
        raise ScenarioError(_nothing(trace, ledger))
    report = ImportReport(
        path=str(trace.path),
        format=known.name,
        num_read=ledger.num_read,
        num_used=len(table),
        problems=ledger.problems(),
        notes=tuple(notes),
    )
    return table, report


def _nothing(trace: TraceArrivals, ledger: Ledger) -> str:
    reasons = "; ".join(problem.describe() for problem in ledger.problems())
    if ledger.num_read == 0:
        return f"{trace.path}: the trace is empty: no rows below its header"
    return f"{trace.path}: none of the {ledger.num_read} rows can be used. {reasons}"


def _kept(table: TraceTable, keep: BoolArray, kind: str, ledger: Ledger) -> TraceTable:
    if keep.all():
        return table
    ledger.add(kind, "dropped", table.lines[~keep])
    return table.take(np.flatnonzero(keep))


def _sorted(table: TraceTable) -> tuple[TraceTable, list[str]]:
    late = int(np.count_nonzero(np.diff(table.arrival_s) < 0))
    if late:
        table = table.take(np.argsort(table.arrival_s, kind="stable"))
    table = replace(table, arrival_s=table.arrival_s - table.arrival_s[0])
    return table, [f"sorted by arrival: {late} rows came before their predecessor"] if late else []


def _within_window(table: TraceTable, trace: TraceArrivals, ledger: Ledger) -> TraceTable:
    start = trace.window_start
    if start == 0 and trace.window_duration is None:
        return table
    keep = table.arrival_s >= start
    if trace.window_duration is not None:
        keep &= table.arrival_s < start + trace.window_duration
    table = _kept(table, keep, "outside the window", ledger)
    return replace(table, arrival_s=table.arrival_s - start)


def _with_output(table: TraceTable, trace: TraceArrivals, ledger: Ledger) -> TraceTable:
    table = _kept(table, table.input_tokens > 0, "no input tokens", ledger)
    empty = table.output_tokens == 0
    if not empty.any():
        return table
    if trace.zero_output == "fail":
        line = int(table.lines[empty][0])
        raise ScenarioError(
            f"{trace.path}:{line}: no output tokens, as in {int(empty.sum())} rows. "
            "Set workload.arrivals.zero_output to drop or one"
        )
    if trace.zero_output == "one":
        ledger.add("no output tokens", "asked for one token", table.lines[empty])
        return replace(table, output_tokens=np.maximum(table.output_tokens, 1))
    return _kept(table, ~empty, "no output tokens", ledger)


def _scaled(table: TraceTable, trace: TraceArrivals, notes: list[str]) -> TraceTable:
    if trace.time_scale != 1.0:
        notes.append(f"arrival times x {trace.time_scale:g}")
        table = replace(table, arrival_s=table.arrival_s * trace.time_scale)
    if trace.length_scale != 1.0:
        notes.append(f"input and output lengths x {trace.length_scale:g}")
        table = replace(
            table,
            input_tokens=np.maximum(np.rint(table.input_tokens * trace.length_scale), 1).astype(np.int64),
            output_tokens=np.maximum(np.rint(table.output_tokens * trace.length_scale), 1).astype(np.int64),
            block_tokens=None if table.block_tokens is None else max(1, round(table.block_tokens * trace.length_scale)),
        )
    return table


def _within_model(
    table: TraceTable, trace: TraceArrivals, max_model_len: int, over_long: OverLong, ledger: Ledger
) -> TraceTable:
    total = table.input_tokens + table.output_tokens
    over = total > max_model_len
    if not over.any():
        return table
    kind = f"input + output over max_model_len {max_model_len}"
    if over_long == "fail":
        fitting = max_model_len / int(total.max()) * trace.length_scale
        raise ScenarioError(
            f"{trace.path}:{int(table.lines[over][0])}: {kind}, as in {int(over.sum())} of {len(table)} rows. "
            f"Set workload.over_long to drop or clip, or workload.arrivals.length_scale to {fitting:.3g}"
        )
    if over_long == "drop":
        return _kept(table, ~over, kind, ledger)
    ledger.add(kind, "clipped", table.lines[over])
    outputs = np.minimum(table.output_tokens, max_model_len - 1)
    return replace(table, output_tokens=outputs, input_tokens=np.minimum(table.input_tokens, max_model_len - outputs))
