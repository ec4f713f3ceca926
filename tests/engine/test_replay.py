"""Decisions equal vLLM's, step for step, on every recorded case."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.replay import Replay, main

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json.gz"))


def load(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt") as stream:
        document: dict[str, Any] = json.load(stream)
    return document


def test_golden_cases_are_all_here() -> None:
    assert len(GOLDEN) == 86


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_replay_recorded_case_is_equal_in_every_field(path: Path) -> None:
    recorded = load(path)
    mine = json.loads(json.dumps(Replay(recorded["case"]).run(check=True)))
    for expected, got in zip(recorded["steps"], mine["steps"], strict=True):
        assert got == expected
    for key in ("stalled", "final", "requests", "stats"):
        assert mine[key] == recorded[key]
    assert mine["rejected"].keys() == recorded["rejected"].keys()


def test_replay_of_requests_that_preempt_for_ever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool smaller than the request, admitted chunk by chunk: it grows, preempts itself, and starts again."""
    monkeypatch.setattr("engine.replay.FRUITLESS_STEPS", 50)
    config = load(GOLDEN[0])["case"]["config"] | {
        "block_size": 1, "num_blocks": 8, "max_model_len": 32, "max_num_batched_tokens": 4, "max_num_seqs": 4,
        "enable_prefix_caching": False, "scheduler_reserve_full_isl": False,
    }  # fmt: skip
    request = {"id": "big", "arrival_step": 0, "prompt_token_ids": list(range(3, 23)), "output_len": 2,
               "output_token_ids": [5, 6], "priority": 0, "arrival_time": 0.0}  # fmt: skip
    log = Replay({"config": config, "requests": [request]}).run()
    assert log["stalled"] == ["big"]


def test_replay_command_writes_the_same_log(tmp_path: Path) -> None:
    out = tmp_path / "log.json"
    subprocess.run([sys.executable, "-m", "engine.replay", str(GOLDEN[0]), "-o", str(out)], check=True)
    assert json.loads(out.read_text())["steps"] == load(GOLDEN[0])["steps"]


def test_replay_of_something_else_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in ("", "[]", "{}", '{"config": 3}', "\x00"):
        path = tmp_path / "case.json"
        path.write_text(content)
        assert main([str(path)]) == 2
        assert "case.json: not a scheduler case" in capsys.readouterr().err


def test_replay_prompt_over_the_limit_is_rejected_not_added() -> None:
    config = load(GOLDEN[0])["case"]["config"] | {"max_model_len": 8}
    request = {"id": "long", "arrival_step": 0, "prompt_token_ids": list(range(3, 11)), "output_len": 2,
               "output_token_ids": [5, 6], "priority": 0, "arrival_time": 0.0}  # fmt: skip
    log = Replay({"config": config, "requests": [request, request | {"id": "empty", "prompt_token_ids": []}]}).run()
    assert sorted(log["rejected"]) == ["empty", "long"]
    assert log["steps"] == []
