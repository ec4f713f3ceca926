"""What a replay does with odd rows: each policy is stated in the scenario and every row it touches is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workbench.scenario.arrivals import OverLong, RequestFile
from workbench.scenario.errors import ScenarioError
from workbench.workload.traces.table import MAX_TOKENS, BoolArray, Ledger, ShortArray, TraceTable

NO_OUTPUT = "no output tokens"


def kept(table: TraceTable, keep: BoolArray, kind: str, ledger: Ledger) -> TraceTable:
    """The rows to keep; the others are entered as dropped (inside a conversation: as left out)."""
    if keep.all():
        return table
    _drop(table, ~keep, kind, ledger)
    return table.take(np.flatnonzero(keep))


def _drop(table: TraceTable, rows: BoolArray, kind: str, ledger: Ledger) -> None:
    ledger.add(kind, "dropped" if table.rows_are == "requests" else "left out", table.lines[rows])


def usable(table: TraceTable, file: RequestFile, ledger: Ledger) -> BoolArray:
    """Which rows can be asked for under the file's policies; the others are entered in the ledger.

    Raises `ScenarioError` where a policy says `fail`.
    """
    keep = np.ones(len(table), dtype=np.bool_)
    if table.failed is not None and file.failed != "keep":
        if file.failed == "fail" and table.failed.any():
            raise _refused(table, table.failed, file, "the recorded request failed", "failed to drop or keep")
        _drop(table, table.failed, "the recorded request failed", ledger)
        keep = ~table.failed
    empty = keep & (table.output_tokens == 0)
    if empty.any():
        if file.zero_output == "fail":
            raise _refused(table, empty, file, NO_OUTPUT, "zero_output to drop or one")
        if file.zero_output == "drop":
            _drop(table, empty, NO_OUTPUT, ledger)
            keep &= ~empty
        else:
            ledger.add(NO_OUTPUT, "asked for one token", table.lines[empty])
    without_input = keep & (table.input_tokens == 0)
    _drop(table, without_input, "no input tokens", ledger)
    keep &= ~without_input
    return keep


def usable_rows(table: TraceTable, file: RequestFile, ledger: Ledger) -> TraceTable:
    """The rows that can be asked for; see `usable`."""
    keep = usable(table, file, ledger)
    if not keep.all():
        table = table.take(np.flatnonzero(keep))
    return replace(table, output_tokens=np.maximum(table.output_tokens, 1))


def _refused(table: TraceTable, rows: BoolArray, file: RequestFile, kind: str, remedy: str) -> ScenarioError:
    return ScenarioError(
        f"{file.path}:{int(table.lines[rows][0])}: {kind}, as in {int(rows.sum())} rows. "
        f"Set {remedy} where the file is named"
    )


def scaled_lengths(table: TraceTable, file: RequestFile, ledger: Ledger) -> TraceTable:
    """Lengths times `length_scale`; blocks shrink with them, so that the same blocks stay shared."""
    scale = file.length_scale
    if scale == 1.0:
        return table
    ledger.note(f"input and output lengths x {scale:g}")
    return replace(
        table,
        input_tokens=_scaled(table.input_tokens, scale),
        output_tokens=_scaled(table.output_tokens, scale),
        block_tokens=None if table.block_tokens is None else max(1, round(table.block_tokens * scale)),
    )


def _scaled(tokens: ShortArray, scale: float) -> ShortArray:
    scaled: ShortArray = np.clip(np.rint(tokens * scale), 1, MAX_TOKENS).astype(np.int32)
    return scaled


def within_model(
    table: TraceTable, file: RequestFile, max_model_len: int, over_long: OverLong, ledger: Ledger
) -> TraceTable:
    """Only requests that a model's window takes. Raises `ScenarioError` for the policy `fail`."""
    total = table.input_tokens + table.output_tokens
    over = total > max_model_len
    if not over.any():
        return table
    kind = f"input + output over max_model_len {max_model_len}"
    if over_long == "fail":
        fitting = max_model_len / int(total.max()) * file.length_scale
        raise ScenarioError(
            f"{file.path}:{int(table.lines[over][0])}: {kind}, as in {int(over.sum())} of {len(table)} rows. "
            f"Raise engine.max_model_len to {int(total.max())}, or set workload.over_long to drop or clip, or "
            f"workload.arrivals.length_scale to {fitting:.3g}"
        )
    if over_long == "drop":
        return kept(table, ~over, kind, ledger)
    ledger.add(kind, "clipped", table.lines[over])
    outputs = np.minimum(table.output_tokens, max_model_len - 1)
    return replace(table, output_tokens=outputs, input_tokens=np.minimum(table.input_tokens, max_model_len - outputs))
