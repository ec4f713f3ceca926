"""Request and step tables as Parquet, back and forth without loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workbench.metrics.records import RequestTable, StepTable
from workbench.store.errors import StoreError

_REQUEST_FLOATS = ("arrival_s", "sent_s", "first_scheduled_s")
_REQUEST_INTS = (
    "class_index",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_cached_tokens",
    "num_preemptions",
    "outcome",
    "num_events",
)
_STEP_FLOATS = ("start_s", "end_s")
_STEP_INTS = (
    "num_running",
    "num_waiting",
    "num_scheduled_requests",
    "num_scheduled_tokens",
    "num_prefill_tokens",
    "num_blocks_in_use",
    "num_free_blocks",
    "num_preempted",
    "num_recomputed_tokens",
    "num_kv_tokens",
)


def write_requests(path: Path, table: RequestTable) -> None:
    """One row per request; `token_times_s` is a list column. Raises `OSError`."""
    errors = [table.errors.get(row) for row in range(len(table))]
    times = pa.LargeListArray.from_arrays(pa.array(table.token_offsets), pa.array(table.token_times_s))
    columns = {
        "request_id": pa.array(table.request_ids, pa.string()),
        "class_name": pa.array([table.class_names[kind] for kind in table.class_index.tolist()], pa.string()),
        **_columns(table, _REQUEST_FLOATS, _REQUEST_INTS),
        "token_times_s": times,
        "error": pa.array(errors, pa.string()),
    }
    pq.write_table(pa.table(columns), path, compression="zstd")


def read_requests(path: Path, class_names: tuple[str, ...]) -> RequestTable:
    """The table as it was written. Raises `StoreError`."""
    table = _read(path, ("request_id", "token_times_s", "error", *_REQUEST_FLOATS, *_REQUEST_INTS))
    times = table.column("token_times_s").combine_chunks()
    offsets = np.asarray(times.offsets, dtype=np.int64)
    errors = table.column("error").to_pylist()
    return RequestTable(
        request_ids=tuple(table.column("request_id").to_pylist()),
        class_names=class_names,
        token_times_s=np.array(times.flatten(), dtype=np.float64),
        token_offsets=offsets - offsets[0],
        errors={row: error for row, error in enumerate(errors) if error is not None},
        **_arrays(table, _REQUEST_FLOATS, np.float64),
        **_arrays(table, _REQUEST_INTS, np.int64),
    )


def write_steps(path: Path, steps: StepTable) -> None:
    """One row per step. Raises `OSError`."""
    columns = _columns(steps, _STEP_FLOATS, _STEP_INTS)
    columns["admission_stop"] = pa.array(steps.admission_stop, pa.string())
    if steps.replica is not None:
        columns["replica"] = pa.array(steps.replica, pa.int64())
    pq.write_table(pa.table(columns), path, compression="zstd")


def read_steps(path: Path) -> StepTable:
    """The table as it was written. Raises `StoreError`."""
    table = _read(path, (*_STEP_FLOATS, *_STEP_INTS, "admission_stop"))
    return StepTable(
        admission_stop=tuple(table.column("admission_stop").to_pylist()),
        replica=np.array(table.column("replica"), dtype=np.int64) if "replica" in table.column_names else None,
        **_arrays(table, _STEP_FLOATS, np.float64),
        **_arrays(table, _STEP_INTS, np.int64),
    )


def _columns(table: Any, floats: tuple[str, ...], ints: tuple[str, ...]) -> dict[str, Any]:
    columns = {name: pa.array(getattr(table, name), pa.float64()) for name in floats}
    return columns | {name: pa.array(getattr(table, name), pa.int64()) for name in ints}


def _arrays(table: Any, names: tuple[str, ...], dtype: type) -> Mapping[str, Any]:
    return {name: np.array(table.column(name).to_numpy(), dtype=dtype) for name in names}


def _read(path: Path, needed: tuple[str, ...]) -> Any:
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file") from None
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path}: cannot be read ({str(error).splitlines()[0][:120]}). Was it cut off?") from None
    missing = [name for name in needed if name not in table.column_names]
    if missing:
        raise StoreError(f"{path}: has no column {missing[0]!r}. Was it written by another version?")
    return table
