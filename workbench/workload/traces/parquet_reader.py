"""Tables of requests that this project's own runs write (`store.tables`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workbench.scenario.errors import ScenarioError
from workbench.workload.traces.table import Ledger, LineRange, TraceTable

_COLUMNS = ("arrival_s", "num_prompt_tokens", "num_output_tokens", "outcome")


def read_own_requests(path: Path, ledger: Ledger) -> TraceTable:
    """Return every request of a stored run, marked as failed where it did not complete. Raises `ScenarioError`."""
    try:
        table = pq.read_table(path, columns=list(_COLUMNS))
    except (OSError, pa.ArrowInvalid) as error:
        raise ScenarioError(f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]})") from None
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise ScenarioError(
            f"{path}: is not a run's table of requests: it has no column {missing[0]!r}. Give the requests.parquet of "
            "a stored run, or a CSV or JSON file"
        )
    arrival_s, inputs, outputs, outcome = (table.column(name).to_numpy() for name in _COLUMNS)
    ledger.num_read = len(arrival_s)
    return TraceTable(
        arrival_s=arrival_s.astype(np.float64),
        input_tokens=inputs.astype(np.int32),
        output_tokens=outputs.astype(np.int32),
        lines=LineRange(1, len(arrival_s)),
        failed=outcome != 0,
    )
