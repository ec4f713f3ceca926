"""Units from the data, states that name a failure, and the names that this project writes itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.metrics.records import Outcome, RequestTable
from workbench.scenario import ScenarioError
from workbench.store.tables import write_requests
from workbench.workload.traces.status import is_failure
from workbench.workload.traces.units import infer_unit

SCALE = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def poisson(rate: float, count: int = 400, start: float = 0.0) -> list[float]:
    gaps = np.random.default_rng(7).exponential(1.0 / rate, count)
    return [float(time) for time in start + np.cumsum(gaps)]


def rate_of(trace: Any) -> float:
    times = trace.table.arrival_s
    return float((len(times) - 1) / (times[-1] - times[0]))


@pytest.mark.parametrize("unit", SCALE)
@pytest.mark.parametrize("start", [0.0, 1_700_000_000.0], ids=["from zero", "since 1970"])
@pytest.mark.parametrize("layout", ["json", "csv"])
def test_mooncake_keys_in_any_unit_give_the_rate(read: Any, unit: str, start: float, layout: str) -> None:
    times = [time * SCALE[unit] for time in poisson(1.23, start=start)]
    stamps = [round(time, 6) if unit == "s" else round(time) for time in times]
    rows = [{"timestamp": time, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]} for time in stamps]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if layout == "csv":
        text = "timestamp,input_length,output_length\n" + "".join(f"{time},600,5\n" for time in stamps)

    trace = read(text)

    assert trace.format == "mooncake"
    assert rate_of(trace) == pytest.approx(1.23, rel=0.15)
    assert any(note.startswith(f"arrival times are in {unit}, inferred") for note in trace.ledger.notes)


@pytest.mark.parametrize("unit", SCALE)
@pytest.mark.parametrize(
    "header", ["arrived_at,num_prefill_tokens,num_decode_tokens", "TIMESTAMP,ContextTokens,GeneratedTokens"]
)
def test_csv_formats_in_any_unit_give_the_rate(read: Any, header: str, unit: str) -> None:
    times = [round(time * SCALE[unit], 6 if unit == "s" else 0) for time in poisson(3.0, start=1_700_000_000.0)]

    trace = read(header + "\n" + "".join(f"{time!r},600,5\n" for time in times))

    assert rate_of(trace) == pytest.approx(3.0, rel=0.15)


def test_named_columns_are_read_in_the_unit_of_the_data_unless_one_is_stated(read: Any) -> None:
    text = "when,a,b\n" + "".join(f"{round(time * 1000)},600,5\n" for time in poisson(1.23))
    columns = {"arrival": "when", "input_tokens": "a", "output_tokens": "b"}

    assert rate_of(read(text, columns=columns)) == pytest.approx(1.23, rel=0.15)
    stated = read(text, columns={**columns, "time_unit": "s"})
    assert rate_of(stated) == pytest.approx(0.00123, rel=0.15)
    assert stated.ledger.notes == []


@pytest.mark.parametrize(
    ("times", "usual", "unit"),
    [
        ([0, 1000, 2000, 3000], "ms", "ms"),  # as Mooncake's own
        ([0.0, 0.81, 1.63, 2.2], "ms", "s"),
        ([0, 1, 1, 2, 3, 3], "ms", "s"),
        ([0.0, 120.5, 260.25], "s", "s"),  # a quiet trace in the format's own unit
        ([5, 45, 118, 300], "s", "s"),
        ([0.0, 0.001, 0.002], "s", "s"),  # a dense one
        ([7.0, 7.0, 7.0], "ms", "ms"),
    ],
)
def test_unit_of_few_rows(times: list[float], usual: str, unit: str) -> None:
    assert infer_unit(times, usual).unit == unit


@pytest.mark.parametrize("rate", [0.5, 3.0, 12.0])
def test_whole_milliseconds_in_a_format_of_seconds_give_the_rate(read: Any, rate: float) -> None:
    rows = "".join(f"{round(1000 * time)},600,5\n" for time in poisson(rate))

    trace = read("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)

    assert rate_of(trace) == pytest.approx(rate, rel=0.15)


@pytest.mark.parametrize("rate", [0.03, 2.0, 300.0])
def test_seconds_in_a_format_of_seconds_stay(read: Any, rate: float) -> None:
    rows = "".join(f"{time:.6f},600,5\n" for time in poisson(rate))

    trace = read("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)

    assert rate_of(trace) == pytest.approx(rate, rel=0.15)


def test_unit_is_not_decided_by_a_few_odd_rows() -> None:
    times = poisson(2.0, start=1_700_000_000.0)

    assert infer_unit([*times, 0.0, 3.0, 1e15], "s").unit == "s"


@pytest.mark.parametrize(
    ("name", "value", "failed"),
    [
        ("cancelled", True, True), ("cancelled", False, False), ("cancelled", "false", False),
        ("canceled", "True", True),
        ("error", False, False), ("error", "", False), ("error", None, False), ("error", "timeout", True),
        ("is_error", "true", True), ("is_error", 0, False), ("result.failed", "1", True), ("timed_out", "no", False),
        ("success", True, False), ("success", "false", True), ("success", 0, True), ("ok", "true", False),
        ("status", "ok", False), ("status", "failed", True), ("status", 200, False), ("status", 500, True),
        ("finish_reason", "stop", False), ("finish_reason", "abort", True),
    ],
)  # fmt: skip
def test_boolean_is_read_by_what_its_column_names(name: str, value: Any, failed: bool) -> None:
    assert is_failure(name, value) is failed


@pytest.mark.parametrize("status", ["cancelled", "is_error"])
def test_rows_of_a_column_that_names_a_failure_are_marked(read: Any, status: str) -> None:
    columns = {"arrival": "t", "input_tokens": "a", "output_tokens": "b", "status": status}
    rows = [(0.0, "false"), (1.0, "true"), (2.0, "false")]
    text = f"t,a,b,{status}\n" + "".join(f"{time},5,6,{state}\n" for time, state in rows)
    lines = "".join(json.dumps({"t": time, "a": 5, "b": 6, status: state == "true"}) + "\n" for time, state in rows)

    for content in (text, lines):
        assert read(content, columns=columns).table.failed.tolist() == [False, True, False]


def test_objects_that_say_they_failed_are_marked(read: Any) -> None:
    base = {"arrival_s": 1.0, "input_tokens": 5, "output_tokens": 6}
    ends: list[dict[str, Any]] = [
        {}, {"cancelled": False, "error": False}, {"cancelled": True}, {"error": {"message": "x"}}, {"success": False},
        {"status": "failed"}, {"status": 503}, {"status": "finished", "error": None}, {"error": "false"},
    ]  # fmt: skip

    trace = read("".join(json.dumps(base | end) + "\n" for end in ends))

    assert trace.table.failed.tolist() == [False, False, True, True, True, True, True, False, False]


@pytest.mark.parametrize(
    "names", ["arrival_s,input_tokens,output_tokens", "arrival_s,num_prompt_tokens,num_output_tokens"]
)
def test_own_names_are_known_and_in_seconds(read: Any, names: str) -> None:
    rows = [(0.0, 100, 7), (250.0, 200, 8), (251.5, 300, 9)]
    keys = names.split(",")
    text = names + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    lines = "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)

    for content in (text, lines):
        table = read(content).table
        assert table.arrival_s.tolist() == [0.0, 250.0, 251.5]
        assert table.input_tokens.tolist() == [100, 200, 300]
        assert table.output_tokens.tolist() == [7, 8, 9]


def test_table_of_requests_of_a_run_is_a_trace(read: Any, tmp_path: Path) -> None:
    count = 3
    table = RequestTable(
        request_ids=("a-0", "a-1", "a-2"), class_names=("a",), class_index=np.zeros(count, dtype=np.int64),
        arrival_s=np.array([5.0, 6.0, 8.0]), sent_s=np.array([5.0, 6.0, 8.0]), first_scheduled_s=np.full(count, np.nan),
        num_prompt_tokens=np.array([10, 20, 30]), num_output_tokens=np.array([4, 5, 0]),
        num_cached_tokens=np.zeros(count, dtype=np.int64), num_preemptions=np.zeros(count, dtype=np.int64),
        outcome=np.array([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED]),
        num_events=np.zeros(count, dtype=np.int64), token_times_s=np.zeros(0),
        token_offsets=np.zeros(count + 1, dtype=np.int64), errors={},
    )  # fmt: skip
    write_requests(tmp_path / "requests.parquet", table)

    trace = read((tmp_path / "requests.parquet").read_bytes())

    assert trace.format == "workbench"
    assert trace.table.arrival_s.tolist() == [0.0, 1.0, 3.0]
    assert trace.table.input_tokens.tolist() == [10, 20, 30]
    assert trace.table.failed.tolist() == [False, False, True]


def test_other_parquet_is_refused_with_the_column_it_lacks(read: Any) -> None:
    with pytest.raises(ScenarioError, match="cannot be read as Parquet"):
        read(b"PAR1 and no more")
