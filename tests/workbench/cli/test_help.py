"""Help pages, version and completion: fast, readable in 80 columns, with examples that parse."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from workbench.cli.main import app

from .conftest import COMMAND, Run

ROOT: Any = typer.main.get_command(app)


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


@pytest.mark.parametrize("words", [words for words, _ in commands(ROOT)], ids=" ".join)
def test_every_command_has_an_example_that_parses(words: tuple[str, ...]) -> None:
    command = dict(commands(ROOT))[words]
    lines = [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("workbench ")]
    assert lines
    for line in lines:
        given = shlex.split(line.partition(" > ")[0])[1:]
        assert given[: len(words)] == list(words)
        command.make_context("workbench", given[len(words) :])  # raises for an option that there is not


def test_help_shows_examples_within_80_columns_and_version_is_told(workbench: Run) -> None:
    done = workbench("export", "--help")
    assert "workbench export reports/chat-1a2b3c4d --format k8s --out chat.yaml" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert workbench("--version").stdout.startswith("workbench 0.")


@pytest.mark.parametrize("words", [["--help"], ["sweep", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    script = f"""
import sys
from workbench.cli.main import main
sys.argv = ['workbench', *{words!r}]
try:
    main()
except SystemExit as end:
    assert not end.code
    heavy = [name for name in ('torch', 'pandas', 'optuna', 'streamlit', 'scipy') if name in sys.modules]
    assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_shell_completion_knows_the_commands(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "_WORKBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": "workbench com",
        "COMP_CWORD": "1",
    }
    script = "import sys; sys.argv = ['workbench']; from workbench.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["compare"]


def test_long_lines_are_wrapped_where_a_width_is_known(tmp_path: Path) -> None:
    script = "from workbench.cli.console import write; write('   cause: ' + 'word ' * 60, 10)"

    def lines(**environment: str) -> list[str]:
        base = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env=base | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    wrapped = lines(COLUMNS="80")
    assert len(wrapped) > 1
    assert max(map(len, wrapped)) <= 80
    assert all(line.startswith(" " * 10 + "word") for line in wrapped[1:])
    assert len(lines()) == 1


def test_sigterm_ends_the_dashboard_and_all_it_started(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [*COMMAND, "dashboard", "--port", str(port)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert answers(port, within_s=60)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
        assert not answers(port, within_s=0)
    finally:
        process.kill()


def answers(port: int, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2) as reply:
                return bool(reply.status == 200)
        except OSError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.2)
