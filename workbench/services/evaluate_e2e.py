"""Simulate published benchmark runs and say how far off the figures are, in vLLM's metric dialect.

Each row of the table names a model, a GPU and a load; the workload and the engine are built from it as its vLLM
version would have been started. What cannot be built is named with its reason.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.simulation import SimulatedDevice, find_simulated_spec
from workbench.loadgen.errors import RunFailed
from workbench.metrics.dialects import vllm
from workbench.metrics.records import RunRecord
from workbench.scenario import ScenarioError
from workbench.services.evaluate_cells import NotBuildable, check_stated, number
from workbench.services.evaluate_iog import was_served_before
from workbench.services.evaluate_notes import under_the_floor, unmodelled
from workbench.services.evaluate_row import device_of, target_of, workload_of

_STATISTICS = ("mean", "p50", "p99")
_RATES = {
    "duration_s": "duration_s",
    "req_s": "request_throughput",
    "output_tok_s": "output_throughput",
    "total_tok_s": "total_token_throughput",
}
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2e": "e2el_ms"}
METRICS = (*_RATES, *(f"{name}_{statistic}_ms" for name in _LATENCIES for statistic in _STATISTICS))
"""Columns that can be compared."""


def evaluate_e2e(path: Path) -> dict[str, Any]:
    """`{"rows": [{"id", "predicted", "errors", "reason", "notes"}]}`; errors are predicted / published - 1.

    Raises `ScenarioError` for a file that is no table of runs.
    """
    return {"rows": list(evaluate_rows(read_rows(path), path.parent))}


def evaluate_rows(rows: list[dict[str, str]], folder: Path | None = None) -> Iterator[dict[str, Any]]:
    """One result per row; `folder` is where traces that rows name lie."""
    for row in rows:
        notes = notes_on(row)
        try:
            predicted = predict_row(row, folder=folder)
        except NotBuildable as reason:
            yield {"id": row["id"], "predicted": {}, "errors": {}, "reason": str(reason), "notes": notes}
            continue
        errors = {}
        for name, value in predicted.items():
            published = number(row, name)
            if published and published > 0 and value is not None:
                errors[name] = value / published - 1.0
        yield {"id": row["id"], "predicted": predicted, "errors": errors, "reason": None, "notes": notes}


def notes_on(row: Mapping[str, str]) -> list[str]:
    """What the simulation of a row leaves out, and figures of it that its chip cannot reach."""
    try:
        return [*unmodelled(row), *under_the_floor(row, find_simulated_spec(row["model"]), device_of(row))]
    except (EngineError, NotBuildable):
        return unmodelled(row)


def predict_row(
    row: Mapping[str, str], device: SimulatedDevice | None = None, folder: Path | None = None
) -> dict[str, float | None]:
    """All figures of one row. Raises `NotBuildable`. `device` replaces what the row names (calibration)."""
    if (row.get("engine") or "vllm").lower() != "vllm":
        raise NotBuildable(f"engine {row['engine']} is not vLLM")
    if not row["model"]:
        raise NotBuildable("model is not stated")
    check_stated(row)
    if (number(row, "pp") or 1) > 1:
        raise NotBuildable("pipeline parallelism is not simulated")
    try:
        device = device or device_of(row)
        workload = workload_of(row, folder)
        record = target_of(row, device, workload).run(workload, after=workload if was_served_before(row) else None)
    except (EngineError, ScenarioError, RunFailed) as error:
        raise NotBuildable(str(error).splitlines()[0]) from error
    return vllm_figures(record)


def vllm_figures(record: RunRecord) -> dict[str, float | None]:
    """The figures that `vllm bench serve` prints, by column name."""
    report = {name: figure.to_json() for name, figure in vllm(record).items()}
    figures = {column: report[name] for column, name in _RATES.items()}
    for column, name in _LATENCIES.items():
        for statistic in _STATISTICS:
            figures[f"{column}_{statistic}_ms"] = report[name][statistic]
    return figures if report["num_completed"] else dict.fromkeys(METRICS)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Raises `ScenarioError` for a file that is no table of runs."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, restval="")
            names = reader.fieldnames or ()
            # Cells beyond the header have no name.
            rows = [{name: value for name, value in row.items() if name is not None} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"{path}: cannot be read as CSV ({error})") from error
    missing = [name for name in ("id", "model", "gpu") if name not in names]
    if missing:
        raise ScenarioError(f"{path}: is no table of published runs: column {missing[0]} is missing")
    if not rows:
        raise ScenarioError(f"{path}: has no rows below its header")
    return rows
