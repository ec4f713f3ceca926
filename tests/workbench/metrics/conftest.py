"""Records written down by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from workbench.metrics.records import Outcome, RequestTable, RunRecord, StepTable

STEP_COLUMNS = (
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


def row(arrival_s: float, *token_times_s: float, **facts: Any) -> dict[str, Any]:
    """One request: arrival, token times, and what differs from a completed request sent on time."""
    return {"arrival_s": arrival_s, "tokens": token_times_s, **facts}


@pytest.fixture
def make_table() -> Callable[..., RequestTable]:
    def make(rows: Sequence[dict[str, Any]], class_names: tuple[str, ...] = ("chat",)) -> RequestTable:
        def column(name: str, default: Any, dtype: type) -> Any:
            return np.array([one.get(name, default) for one in rows], dtype=dtype)

        arrivals = column("arrival_s", 0.0, np.float64)
        counts = [len(one["tokens"]) for one in rows]
        return RequestTable(
            request_ids=tuple(f"r{index}" for index in range(len(rows))),
            class_names=class_names,
            class_index=column("kind", 0, np.int64),
            arrival_s=arrivals,
            sent_s=np.array([one.get("sent_s", one["arrival_s"]) for one in rows], dtype=np.float64),
            first_scheduled_s=np.array([one.get("scheduled_s", one["arrival_s"]) for one in rows], dtype=np.float64),
            num_prompt_tokens=column("prompt", 10, np.int64),
            num_output_tokens=np.array(counts, dtype=np.int64),
            num_cached_tokens=column("cached", 0, np.int64),
            num_preemptions=column("preemptions", 0, np.int64),
            outcome=column("outcome", Outcome.COMPLETED, np.int64),
            token_times_s=np.array([time for one in rows for time in one["tokens"]], dtype=np.float64),
            token_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            num_events=np.array(counts, dtype=np.int64),
            errors={index: one["error"] for index, one in enumerate(rows) if "error" in one},
        )

    return make


@pytest.fixture
def make_record(make_table: Callable[..., RequestTable]) -> Callable[..., RunRecord]:
    def make(
        rows: Sequence[dict[str, Any]],
        *,
        duration_s: float = 10.0,
        class_names: tuple[str, ...] = ("chat",),
        steps: Sequence[tuple[float, float, int, int]] = (),
        **facts: Any,
    ) -> RunRecord:
        """`steps` are (start, end, blocks in use, free blocks)."""
        columns = {name: np.zeros(len(steps), dtype=np.int64) for name in STEP_COLUMNS}
        columns["num_blocks_in_use"] = np.array([step[2] for step in steps], dtype=np.int64)
        columns["num_free_blocks"] = np.array([step[3] for step in steps], dtype=np.int64)
        table = StepTable(
            start_s=np.array([step[0] for step in steps], dtype=np.float64),
            end_s=np.array([step[1] for step in steps], dtype=np.float64),
            admission_stop=("no_waiting",) * len(steps),
            **columns,
        )
        return RunRecord(
            requests=make_table(rows, class_names),
            steps=table,
            duration_s=duration_s,
            clock="virtual",
            engine={"num_blocks": 9},
            **facts,
        )

    return make
