"""`workbench plan --check` against a server of ours: what it says holds, and what it says fails."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from workbench.plan.check import CheckQuestion, check_plan
from workbench.scenario import ScenarioError

COMMAND = [sys.executable, "-c", "from workbench.cli.main import main; main()"]


def plan_document(**changes: Any) -> dict[str, Any]:
    """A plan of one instance that any machine keeps; latencies are predicted for another one."""
    scenario = {
        "name": "small",
        "model": "tiny",
        "engine": {"max_model_len": 512},
        "target": {"kind": "simulated", "gpu": "l4-24g"},
        "workload": {
            "num_requests": 80,
            "arrivals": {"kind": "poisson", "rate": 20},
            "classes": [{"name": "chat", "input_tokens": 40, "output_tokens": 8}],
        },
        "slo": {"ttft_p95": "20s", "tpot_p95": "5s"},
    }
    whole = {"rate_per_s": 40, "replicas": {"minimum": 1}, "kv_budget": {"num_blocks": 100}, "scenario": scenario}
    return whole | changes


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = [
        part for value in ("device_memory=64MiB", "max_model_len=512", "threads=1") for part in ("--set", value)
    ]
    process = subprocess.Popen(
        [*COMMAND, "serve", "--model", "tiny", "--port", "0", *settings], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stderr.readline())
        assert found
        yield found.group()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def checked(tmp_path: Path, url: str, document: dict[str, Any], **more: Any) -> tuple[dict[str, Any], Any]:
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps(document))
    found = check_plan(CheckQuestion(plan=path, url=url, **more))
    return {figure.name: figure for figure in found.figures}, found


def test_check_measures_every_figure_of_the_plan(url: str, tmp_path: Path) -> None:
    figures, found = checked(tmp_path, url, plan_document())

    assert found.rate_per_s == 40
    assert figures["ttft_p95"].holds
    assert figures["tpot_p95"].measured == 1.0
    assert figures["queue_growth_per_s"].holds
    assert figures["num_blocks"].holds  # 64 MiB hold far more than the plan's 100
    for name in ("ttft_s.p50", "tpot_s.p95", "e2el_s.p95", "requests_per_s"):
        assert figures[name].predicted is not None
        assert figures[name].measured is not None
    assert figures["tpot_s.p95"].holds is (figures["tpot_s.p95"].measured <= 1.3 * figures["tpot_s.p95"].predicted)


def test_check_of_what_was_not_kept_fails_and_offers_each_replica_its_share(url: str, tmp_path: Path) -> None:
    document = plan_document(replicas={"minimum": 2}, kv_budget={"num_blocks": 10_000_000})
    document["scenario"]["slo"] = {"ttft_p95": "1us"}

    figures, found = checked(tmp_path, url, document, replicas=1)

    assert found.rate_per_s == 20
    assert figures["ttft_p95"].holds is False
    assert figures["num_blocks"].holds is False
    assert not found.holds


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"name": "no plan"}, "no section 'scenario'"),
        (plan_document(scenario={"name": "x"}), "workload: is missing"),
        ([1], "no section 'scenario'"),
    ],
)
def test_check_of_what_is_no_plan_says_so(tmp_path: Path, document: Any, message: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps(document))

    with pytest.raises(ScenarioError, match=message):
        check_plan(CheckQuestion(plan=path, url="http://127.0.0.1:1"))


@pytest.mark.parametrize("rate", ["fast", -3, 0, None])
def test_check_of_a_plan_without_a_rate_says_so(tmp_path: Path, rate: Any) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps(plan_document(rate_per_s=rate)))

    with pytest.raises(ConfigError, match="rate_per_s must be numbers over 0"):
        check_plan(CheckQuestion(plan=path, url="http://127.0.0.1:1"))


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:8000"])
def test_check_of_what_is_no_web_address_says_so(tmp_path: Path, url: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps(plan_document()))

    with pytest.raises(ConfigError, match=r"--endpoint: url: must be an http"):
        check_plan(CheckQuestion(plan=path, url=url))


@pytest.mark.parametrize("minimum", [0.5, 1.5, 10**400])
def test_check_of_a_plan_without_whole_replicas_says_so(tmp_path: Path, minimum: float) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps(plan_document(replicas={"minimum": minimum})))

    with pytest.raises(ConfigError, match=r"replicas\.minimum.* whole"):
        check_plan(CheckQuestion(plan=path, url="http://127.0.0.1:1"))
