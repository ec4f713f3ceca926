"""What is saved comes back; what is broken says so."""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.metrics.records import Outcome, RequestTable, RunRecord, StepTable
from workbench.store import RunInfo, StoredRun, StoreError, list_runs, load_run, load_run_info, save_run
from workbench.store.atomic import new_directory


def table(count: int = 3) -> RequestTable:
    whole = np.arange(count, dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(whole)])
    return RequestTable(
        request_ids=tuple(f"chat-{index}" for index in range(count)),
        class_names=("chat", "never used"),
        class_index=whole * 0,
        arrival_s=whole / 3,
        sent_s=np.where(whole == 2, np.nan, whole / 3),
        first_scheduled_s=np.full(count, np.nan),
        num_prompt_tokens=whole + 5,
        num_output_tokens=whole,
        num_cached_tokens=whole - 1,
        num_preemptions=whole,
        outcome=np.where(whole == 0, Outcome.FAILED, Outcome.COMPLETED),
        token_times_s=np.arange(offsets[-1]) / 7,
        token_offsets=offsets,
        num_events=whole,
        errors={0: "boom: ünïcode"} if count else {},
    )


def steps(count: int = 2) -> StepTable:
    whole = np.arange(count, dtype=np.int64)
    columns = {field.name: whole for field in fields(StepTable) if field.name.startswith("num_")}
    return StepTable(start_s=whole / 3, end_s=whole / 3 + 0.1, admission_stop=("no_waiting",) * count, **columns)


def run(*, num_requests: int = 3, num_steps: int = 2) -> StoredRun:
    record = RunRecord(
        requests=table(num_requests),
        steps=steps(num_steps),
        duration_s=1 / 3,
        clock="virtual",
        engine={"num_blocks": 9, "reasons": {"dtype": "auto"}},
        prefix_queried_tokens=7,
        prefix_hit_tokens=2,
        decision_fingerprint="abc",
        notes=("a note",),
    )
    info = RunInfo(
        created_at="2026-01-01T00:00:00+00:00",
        scenario={"name": "demo", "path": Path("a/b")},
        seed=3,
        workload_fingerprint="f00",
        metrics={"num_requests": 3, "goodput_rps": None},
        verdict="VALID",
    )
    return StoredRun(info=info, record=record)


def assert_equal(one: Any, other: Any) -> None:
    for field in fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            assert np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
        elif field.name in ("requests", "steps"):
            assert_equal(left, right)
        else:
            assert left == right


@pytest.mark.parametrize(("num_requests", "num_steps"), [(3, 2), (0, 0), (1, 0)])
def test_save_load_gives_the_same_record(tmp_path: Path, num_requests: int, num_steps: int) -> None:
    saved = run(num_requests=num_requests, num_steps=num_steps)
    save_run(tmp_path / "runs" / "one", saved)
    loaded = load_run(tmp_path / "runs" / "one")
    assert_equal(saved.record, loaded.record)
    assert loaded.info.scenario == {"name": "demo", "path": "a/b"}
    assert loaded.info.verdict == "VALID"
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == ["one"]


def test_save_twice_is_refused_and_keeps_the_first(tmp_path: Path) -> None:
    save_run(tmp_path / "one", run())
    with pytest.raises(StoreError, match="exists already"):
        save_run(tmp_path / "one", run(num_requests=1))
    assert len(load_run(tmp_path / "one").record.requests) == 3


def test_save_nan_in_metrics_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    broken = run()
    info = RunInfo(
        **{field.name: getattr(broken.info, field.name) for field in fields(RunInfo)} | {"metrics": {"x": math.nan}}
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_run(tmp_path / "one", StoredRun(info=info, record=broken.record))
    assert list(tmp_path.iterdir()) == []


def test_save_on_a_full_disk_is_a_store_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"one: cannot be written .*No space left on device"):
        save_run(tmp_path / "one", run())
    assert list(tmp_path.iterdir()) == []


def test_save_below_a_file_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be written"):
        save_run(tmp_path / "file" / "one", run())


def test_new_directory_exception_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    def write_half() -> None:
        with new_directory(tmp_path / "one") as temporary:
            (temporary / "half").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["requests.parquet", "steps.parquet", "run.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "garbage"])
def test_load_damaged_file_is_a_store_error_that_names_it(tmp_path: Path, name: str, damage: str) -> None:
    path = save_run(tmp_path / "one", run()) / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "garbage": b"\xff" * 100}[damage])
    with pytest.raises(StoreError, match=name):
        load_run(tmp_path / "one")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 99),
        ("record", None),
        ("record", {"class_names": ["a"]}),
        ("seed", ...),
        ("scenario", []),
        ("metrics", 5),
        ("provenance", []),
        ("reasons", None),
    ],
)
def test_load_run_file_of_another_shape_is_a_store_error(tmp_path: Path, key: str, value: Any) -> None:
    path = save_run(tmp_path / "one", run()) / "run.json"
    values = json.loads(path.read_text())
    if value is ...:
        del values[key]
    else:
        values[key] = value
    path.write_text(json.dumps(values))
    with pytest.raises(StoreError, match=r"run\.json"):
        load_run(tmp_path / "one")


def test_list_reports_broken_runs_and_ignores_unfinished_writes(tmp_path: Path) -> None:
    save_run(tmp_path / "good", run())
    (save_run(tmp_path / "bad", run()) / "run.json").write_text("{")
    (tmp_path / ".writing-x-1").mkdir()
    (tmp_path / "note.txt").write_text("x")
    entries = list_runs(tmp_path)
    assert [entry.directory.name for entry in entries] == ["bad", "good"]
    assert entries[0].info is None
    assert entries[0].problem is not None
    assert "cannot be read" in entries[0].problem
    assert entries[1].info == load_run_info(tmp_path / "good")
    assert list_runs(tmp_path / "nowhere") == []
