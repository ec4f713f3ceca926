"""A small store that several folders of tests look at."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.scenario import load_scenario
from workbench.services.evaluate import run_scenario, store_run
from workbench.services.report import write_report
from workbench.services.sweep import run_sweep

QUICKSTART = Path(__file__).resolve().parents[2] / "scenarios" / "quickstart.yaml"
SMALL = [
    "workload.num_requests=16",
    "measurement.warm_up=0",
    "slo.ttft_p95=20s",
    "slo.tpot_p90=10s",
    "search.objective=output_tokens_per_s",
]
"""Few requests, and limits that any machine keeps: what the figures are does not matter here."""


@pytest.fixture(scope="session")
def swept_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with one real sweep (its report written) and one real run, made once; treat it as read-only."""
    store = tmp_path_factory.mktemp("store")
    before = os.environ.get("OMP_WAIT_POLICY")
    os.environ["OMP_WAIT_POLICY"] = "passive"
    scenario = load_scenario(QUICKSTART, SMALL)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is experimental")
        study = run_sweep(scenario, out=store, trials=4).directory
    write_report(study)
    store_run(store / "runs" / "quickstart-1", run_scenario(scenario))
    yield store
    os.environ.pop("OMP_WAIT_POLICY")
    if before is not None:
        os.environ["OMP_WAIT_POLICY"] = before


@pytest.fixture(scope="session")
def swept_study(swept_store: Path) -> Path:
    """The study in that store."""
    return next(path.parent for path in swept_store.glob("*/study.json"))
