"""Studies of every kind of objective in optuna-dashboard, asked over its HTTP interface."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from workbench.scenario.search import Search
from workbench.search.artifacts import RunArchive
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.storage import open_journal, open_url
from workbench.search.study import SweepStudy

COMMAND = Path(sys.executable).with_name("optuna-dashboard")
DEADLINE_S = 20.0
SPACE = {"max_num_seqs": {"low": 1, "high": 8}, "enable_prefix_caching": {"choices": [True, False]}}
DEFAULT = {"max_num_seqs": 8, "enable_prefix_caching": True}
FRONT = {"output_tokens_per_s": 900.0, "ttft_s.p95": 0.2, "tpot_s.p95": 0.02}
COMPLETE = TrialState.COMPLETE
OUTCOMES = [
    TrialOutcome(state=COMPLETE, verdict="VALID", objective=900.0, constraints={"ttft_p95": -0.01}, metrics={}),
    TrialOutcome(state=COMPLETE, verdict="SUSPECT", reason="too few samples", objective=950.0, metrics={}),
    TrialOutcome(state=COMPLETE, verdict="VALID", objective=990.0, constraints={"ttft_p95": 0.2}, metrics={}),
    TrialOutcome(state=TrialState.INFEASIBLE, reason="does not fit"),
    TrialOutcome(state=TrialState.FAILED, reason="died"),
]


def write_study(directory: Path, objective: str, url: str | None) -> None:
    search = Search.model_validate({"objective": objective, "space": SPACE, "sampler": "random"})
    storage = open_journal(directory / "journal.log") if url is None else open_url(url)
    run = directory / "run"
    run.mkdir()
    (run / "run.json").write_text("{}\n")
    archive = RunArchive(directory / "artifacts")
    archive.folder.mkdir()
    study = SweepStudy(objective, search, seed=1, storage=storage, default_params=DEFAULT)
    study.open_for(len(OUTCOMES))
    for outcome in OUTCOMES:
        trial = study.take()
        assert trial is not None
        if outcome.state is TrialState.COMPLETE:
            archive.put(trial.handle, run)
        if search.is_pareto and outcome.objective is not None:
            outcome = replace(outcome, objectives={**FRONT, "output_tokens_per_s": outcome.objective})
        study.finish(trial, outcome)
    study.close()


@contextmanager
def dashboard(storage: str, artifacts: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [storage, "--artifact-dir", str(artifacts), "--port", str(port), "--server", "wsgiref", "--quiet"]
    process = subprocess.Popen([str(COMMAND), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Listening on "), line
        begin_s = time.monotonic()  # it says so a moment before it does
        while process.poll() is None and time.monotonic() < begin_s + DEADLINE_S:
            with suppress(URLError):
                ask(f"http://127.0.0.1:{port}/api/studies")
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        return json.load(answer)


@pytest.mark.skipif(not COMMAND.exists(), reason="optuna-dashboard is not installed")
@pytest.mark.parametrize(
    ("objective", "kind", "names"),
    [
        ("sustainable_rate_per_s", "journal", ["sustainable_rate_per_s"]),
        ("output_tokens_per_s", "sqlite", ["output_tokens_per_s"]),
        ("ttft_s.p95", "journal", ["ttft_s.p95"]),
        ("pareto", "journal", list(FRONT)),
    ],
)
def test_dashboard_shows_trials_verdicts_and_files(objective: str, kind: str, names: list[str], tmp_path: Path) -> None:
    url = None if kind == "journal" else f"sqlite:///{tmp_path}/study.db"
    write_study(tmp_path, objective, url)
    with dashboard(url or str(tmp_path / "journal.log"), tmp_path / "artifacts") as page:
        (summary,) = ask(f"{page}/api/studies")["study_summaries"]
        study = ask(f"{page}/api/studies/{summary['study_id']}")
        trials = study["trials"]
        first = trials[0]
        (artifact,) = first["artifacts"]
        stored = ask(f"{page}/artifacts/{summary['study_id']}/{first['trial_id']}/{artifact['artifact_id']}")
    assert summary["study_name"] == objective
    assert study["objective_names"] == names
    assert [trial["state"] for trial in trials] == ["Complete", "Complete", "Complete", "Pruned", "Fail"]
    assert first["values"] == (list(FRONT.values()) if objective == "pareto" else [900.0])
    assert [attributes(trial)["verdict"] for trial in trials] == [
        *("VALID", "SUSPECT: too few samples", "VALID", "INFEASIBLE: does not fit", "FAILED: died"),
    ]
    assert attributes(trials[2])["misses"] == "ttft_p95"
    assert (artifact["filename"], stored) == ("run.json", {})


def attributes(trial: Mapping[str, Any]) -> dict[str, str]:
    """Texts come quoted or not, as the version likes."""
    return {each["key"]: each["value"].strip('"') for each in trial["user_attrs"]}
