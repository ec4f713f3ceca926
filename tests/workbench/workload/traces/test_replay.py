"""Which part of a trace is replayed, how fast and how often, and what policies do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workbench.scenario import ScenarioError
from workbench.scenario.arrivals import TraceArrivals
from workbench.scenario.classes import ClassFile
from workbench.workload.traces import ImportReport, TraceTable, import_requests, import_trace

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def replay(path: Any, *, limits: dict[str, Any] | None = None, **keys: Any) -> tuple[TraceTable, ImportReport]:
    return import_trace(TraceArrivals.model_validate({"kind": "trace", "path": path, **keys}), **(limits or {}))


@pytest.fixture
def ten(write: Any) -> Any:
    return write(HEADER + "".join(f"{second},100,10\n" for second in range(10)))


def test_replay_at_a_rate_stretches_the_times_and_says_so(ten: Any) -> None:
    table, report = replay(ten, rate=4)
    assert table.arrival_s[-1] == pytest.approx(9 / 4)
    assert report.notes == (
        "arrival times are in s, inferred from the data: 1 requests/s",
        "arrival times x 0.25 for 4 requests/s",
    )


def test_replay_loop_repeats_at_the_mean_gap(ten: Any) -> None:
    table, report = replay(ten, loop=3)
    assert len(table) == 30
    assert table.arrival_s[9:12].tolist() == pytest.approx([9, 10, 11])
    assert (report.num_read, report.num_used) == (10, 10)
    assert report.notes[1:] == ("replayed 3 times, every 10 s",)


def test_replay_loop_ends_at_num_requests_and_duration(ten: Any) -> None:
    assert len(replay(ten, loop=100, limits={"num_requests": 25})[0]) == 25
    assert len(replay(ten, loop=100, limits={"duration_s": 12.5})[0]) == 13


def test_replay_window_by_rate_takes_the_longest_busy_stretch(write: Any) -> None:
    busy = [*range(0, 60, 10), *range(120, 300, 2), *range(360, 420, 2), 1000]
    table, report = replay(write(HEADER + "".join(f"{t},1,1\n" for t in busy)), window_min_rate=0.4)
    assert len(table) == 90
    assert table.arrival_s[-1] == 178
    assert report.notes[1:] == ("window with at least 0.4/s: 120 s to 300 s",)
    with pytest.raises(ScenarioError, match="none of the"):
        replay(write(HEADER + "0,1,1\n99,1,1\n", "b"), window_min_rate=5)


def test_replay_failed_rows_follow_the_policy(write: Any) -> None:
    rows = [
        {"arrived_at": t, "input_tokens": 5, "output_tokens": 5, "status": s} for t, s in ((0, "ok"), (1, "failed"))
    ]
    path = write("".join(json.dumps(row) + "\n" for row in rows))
    assert len(replay(path)[0]) == 1
    assert replay(path)[1].problems[0].describe() == "1 dropped: the recorded request failed (line 2)"
    assert len(replay(path, failed="keep")[0]) == 2
    with pytest.raises(ScenarioError, match=r":2: the recorded request failed, as in 1 rows"):
        replay(path, failed="fail")


def test_replay_of_text_without_times_names_the_way_out(write: Any) -> None:
    path = write('{"prompt": "a", "output_tokens": 3}\n')
    with pytest.raises(ScenarioError, match=r"has no arrival times to replay\. Name it in workload\.classes as file:"):
        replay(path)


def test_import_requests_counts_conversations_in_rows(write: Any) -> None:
    def talk(*texts: str) -> dict[str, Any]:
        return {"conversations": [{"from": ("human", "gpt")[i % 2], "value": t} for i, t in enumerate(texts)]}

    path = write(json.dumps([talk("a", "b", "c", ""), talk("a", ""), talk("x")]))
    table, report = import_requests(ClassFile(path=path))
    assert len(table) == 1
    assert (report.num_read, report.num_used, report.num_skipped) == (3, 1, 2)
