"""The control plane as machine code decides and times as it does in Python, and never outlives its sources."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import compiled
from engine.compiled import __main__ as building

HERE = Path(__file__).parent
LIBRARY = f"code_of_all__mypyc{compiled.SUFFIX}"

PROGRAM = """
import json, random, sys
from engine.compiled import is_used
from engine.config import EngineConfig
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.simulation import SimulatedDevice, build_simulation

results = []
for seed in range(12):
    rng = random.Random(seed)
    config = EngineConfig.from_dict({
        "model": "Llama-3.1-8B", "max_model_len": 1024, "num_blocks": rng.choice([150, 400, 3000]),
        "block_size": rng.choice([8, 16, 32]), "max_num_seqs": rng.choice([4, 32]),
        "max_num_batched_tokens": rng.choice([256, 2048]), "async_scheduling": seed % 2 == 0,
        "scheduling_policy": rng.choice(["fcfs", "priority"]),
    })
    core = build_simulation(config, SimulatedDevice.of("a100-80g-sxm")).core
    news = []
    for i in range(60):
        prompt = [7] * rng.choice([0, 64]) + [rng.randrange(1000) for _ in range(rng.randrange(1, 400))]
        sampling = SamplingParams(max_tokens=rng.randrange(1, 80), ignore_eos=True)
        core.add_request(Request(f"r{i}", prompt, sampling, priority=rng.randrange(3)))
        news += [tuple(each) for each in core.step()]
    while core.has_unfinished():
        news += [tuple(each) for each in core.step(core.clock.now() + rng.random())]
    steps = [(s.start_s, s.end_s, s.num_kv_tokens, s.num_free_blocks, s.num_preempted) for s in core.step_stats]
    scheduler = core.scheduler
    results.append([news, steps, scheduler.fingerprint.hexdigest(), scheduler.blocks.pool.free_queue()])
json.dump({"is_used": is_used(), "results": results}, sys.stdout)
"""


def simulate(**environment: str) -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if name != "WORKBENCH_PURE_PYTHON"} | environment
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=170, env=env)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_machine_code_and_python_give_the_same_simulations() -> None:
    if not compiled.is_current():
        pytest.skip("no machine code here: `python -m engine.compiled` needs mypy and a C compiler")
    fast, slow = simulate(), simulate(WORKBENCH_PURE_PYTHON="1")
    assert (fast["is_used"], slow["is_used"]) == (True, False)
    assert fast["results"] == slow["results"]


def test_recorded_decisions_are_equal_in_python() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", str(HERE / "test_replay.py"), "-k", "recorded_case"],
        capture_output=True, text=True, timeout=170, env=os.environ | {"WORKBENCH_PURE_PYTHON": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the sources, and a build that matches them."""
    for module in compiled.MODULES:
        source = compiled.source_of(module)
        target = tmp_path / source.relative_to(compiled.ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    for module in (compiled, building):
        monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / LIBRARY).write_bytes(b"machine code")
    files = {LIBRARY: compiled.digest(tmp_path / "build" / LIBRARY)}
    manifest = {"suffix": compiled.SUFFIX, "sources": compiled.digests(), "files": files}
    (tmp_path / "build" / compiled.MANIFEST).write_text(json.dumps(manifest))
    return tmp_path


def test_build_of_these_sources_is_current(copy: Path) -> None:
    assert compiled.is_current()


def test_build_of_an_edited_source_is_not_current(copy: Path) -> None:
    with (copy / "engine" / "core" / "scheduler.py").open("a") as stream:
        stream.write("\n")
    assert not compiled.is_current()


@pytest.mark.parametrize("content", [b"", b"machine", b"machine\x00code"])
def test_build_with_a_damaged_file_is_not_current(copy: Path, content: bytes) -> None:
    (copy / "build" / LIBRARY).write_bytes(content)
    assert not compiled.is_current()


def test_build_with_a_missing_file_is_not_current(copy: Path) -> None:
    (copy / "build" / LIBRARY).unlink()
    assert not compiled.is_current()


def test_build_that_cannot_be_loaded_is_left_with_a_note(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WORKBENCH_PURE_PYTHON", raising=False)
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, compiled._Finder)])
    compiled.use()
    assert not compiled.is_used()
    note = capsys.readouterr().err
    assert "cannot be loaded" in note
    assert f"rm -r {copy / 'build'}; python -m engine.compiled" in note


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"suffix": ".other.so", "sources": {}}',
        "\x00",
        '{"suffix": "%s", "sources": null}',
        "5",
        "null",
    ],
)
def test_build_with_another_manifest_is_not_current(copy: Path, content: str) -> None:
    (copy / "build" / compiled.MANIFEST).write_text(content)
    assert not compiled.is_current()


def test_build_that_fails_says_so_and_leaves_what_was_there(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(work: Path) -> Path:
        raise RuntimeError("command 'cc' failed: No such file or directory")

    (copy / "build" / compiled.MANIFEST).write_text("{}")
    monkeypatch.setattr(building, "build", fail)
    assert building.main() == 1
    assert "not compiled (command 'cc' failed" in capsys.readouterr().err
    assert [path.name for path in copy.iterdir() if path.name != "engine"] == ["build"]


def test_build_removes_what_a_killed_one_left(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(work: Path) -> Path:
        (work / "done").mkdir()
        (work / "done" / "new").write_text("")
        return work / "done"

    (copy / "build" / compiled.MANIFEST).write_text("{}")
    (copy / ".build-killed" / "c").mkdir(parents=True)
    monkeypatch.setattr(building, "build", make)
    assert building.main() == 0
    assert sorted(path.name for path in copy.iterdir()) == ["build", "engine"]
    assert [path.name for path in (copy / "build").iterdir()] == ["new"]


def test_build_after_another_process_has_built_is_left(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, True])  # before the turn comes, and then
    monkeypatch.setattr(building, "is_current", lambda: next(answers))
    monkeypatch.setattr(building, "build", lambda work: pytest.fail("built again"))
    assert building.main() == 0


def test_current_build_is_not_made_again(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "build", lambda work: pytest.fail("built again"))
    assert building.main() == 0
