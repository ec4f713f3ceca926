"""Whatever is wrong with the input: at most three lines that name it, exit code 2, nothing on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.cli.failures import exit_code_of
from workbench.cli.main import main


def outcome(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[object, str]:
    """Exit code and stderr of a command in this process; whatever failed must leave stdout alone."""
    monkeypatch.setattr("sys.argv", ["workbench", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert not ended.value.code or captured.out == ""
    return ended.value.code, captured.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["swep"], "swep"),
        (["sweep"], "SCENARIO"),
        (["run", "x.yaml", "--nope"], "--nope"),
        (["sweep", "x.yaml", "--trials", "0"], "--trials"),
        (["sweep", "x.yaml", "--seed", "-1"], "--seed"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--set", "block_size"], "block_size"),
        (["serve", "--set", "nope=1"], "nope"),
        (["scenario", "nope"], "nope"),
        (["run", "nowhere.yaml"], "nowhere.yaml"),
        (["report", "nowhere"], "nowhere"),
        (["evaluate", "ops", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_wrong_words_exit_with_2_and_few_lines(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, stderr = outcome(capsys, monkeypatch, *words)
    assert code == 2
    assert stderr.startswith("error: ")
    assert named in stderr
    assert len(stderr.splitlines()) <= 3


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("engine.max_num_seq=1", "max_num_seq"),
        ("engine.max_num_batched_tokens=4", "max_num_seqs"),
        ("workload.arrivals={kind: poisson, rate: -1}", "workload.arrivals.rate"),
        ("workload.classes.0.weight=0", "weights"),
        ("workload.classes.0.input_tokens=300", "max_model_len"),
        ("engine.num_blocks=2", "max_model_len"),
        ("target={kind: simulated, gpu: nope}", "nope"),
        ("target={kind: endpoint, url: 'http://127.0.0.1:1'}", "127.0.0.1:1"),
        ("measurement.warm_up=1h", "error: measurement: warm_up"),
        (f"{'x' * 3000}=1", "xxx"),
    ],
)
def test_run_refuses_the_scenario(
    override: str,
    named: str,
    scenario: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, stderr = outcome(
        capsys, monkeypatch, "run", scenario, "--set", override, "--out", tmp_path / "runs", "--json"
    )
    assert code == 2
    assert named in stderr
    lines = stderr.splitlines()
    assert len(lines) <= 3
    assert all(len(line) < 700 for line in lines)


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_out_that_is_a_file_is_refused_before_anything_runs(
    command: str, scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.services.targets.build_target", lambda *_: pytest.fail("it ran"))
    (tmp_path / "file").write_text("")
    code, stderr = outcome(capsys, monkeypatch, command, scenario, "--out", tmp_path / "file" / "x")
    assert code == 2
    assert str(tmp_path / "file") in stderr


def test_endpoint_cannot_be_swept(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "target={kind: endpoint, url: 'http://127.0.0.1:1'}"
    code, stderr = outcome(capsys, monkeypatch, "sweep", scenario, "--set", target)
    assert (code, len(stderr.splitlines())) == (2, 1)
    assert "target" in stderr


def test_out_of_memory_is_a_failed_run_and_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(MemoryError()) == 1
    assert capsys.readouterr().err == "error: out of memory\n"


def test_our_own_bug_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(ZeroDivisionError("x")) == 3
    assert "ZeroDivisionError: x" in capsys.readouterr().err


def test_ctrl_c_exits_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.scenario.json_schema", interrupt)
    assert outcome(capsys, monkeypatch, "scenario", "schema") == (1, "interrupted\n")
