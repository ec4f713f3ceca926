"""One run in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from workbench.cli.console import err, limit_in_words, metric, number, out, run_status, seconds, show_doubts, write
from workbench.metrics.summary import LATENCY_METRICS, SCALAR_METRICS
from workbench.scenario import load_scenario, scenario_to_dict
from workbench.services.evaluate import RunResult, run_scenario
from workbench.services.export import serve_line
from workbench.services.runs import check_writable, store_next


def run_command(scenario: Path, *, overrides: list[str], parent: Path, as_json: bool) -> None:
    loaded = load_scenario(scenario, overrides)
    check_writable(parent)
    show_doubts(loaded)
    with run_status("starting the engine") as report:
        result = run_scenario(loaded, on_progress=report)
    directory = store_next(parent, loaded.name, result)
    if as_json:
        from workbench.cli.main import print_json

        print_json(result.to_json() | {"run": str(directory)})
    else:
        render(result)
        out.print(f"stored: {directory}", markup=False)
        out.print(f"export: workbench export {directory} --format vllm-args", markup=False)
    if result.summary.overall.num_completed == 0:
        err.print(f"error: {result.verdict.messages[0]}", markup=False)
        raise SystemExit(1)


def render(result: RunResult) -> None:
    """Figures overall and per class."""
    columns = {"all": result.summary.overall, **(result.summary.classes if len(result.summary.classes) > 1 else {})}
    table = Table(title=f"{result.scenario.name}: {result.verdict.status.value}", title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for name in SCALAR_METRICS:
        table.add_row(name, *(metric(name, getattr(metrics, name)) for metrics in columns.values()))
    for name in LATENCY_METRICS:
        table.add_section()
        for statistic in ("mean", "p50", "p90", "p95", "p99"):
            cells = [getattr(getattr(metrics, name), statistic) for metrics in columns.values()]
            table.add_row(f"{name} {statistic}", *(metric(name, value) for value in cells))
        samples: list[Any] = [getattr(metrics, name).num_samples for metrics in columns.values()]
        table.add_row(f"{name} samples", *map(number, samples))
    write(result.basis.sentence)
    write(f"Answer: {_answer(result)}")
    command = serve_line(scenario_to_dict(result.scenario), result.params, result.record.engine)
    if command is not None:
        write(f"Serve: {command}")
    for limit in result.summary.limits:
        write(f"Limit: {limit_in_words(limit.to_dict())}")
    out.print(table)
    if result.record.fleet is not None:
        out.print(_replicas(result.record.fleet))
    num_issued, num_measured = len(result.record.requests), result.summary.overall.num_requests
    if num_measured < num_issued:
        out.print(
            f"measured: {num_measured} of {num_issued} requests (warm-up and cool-down are left out)", markup=False
        )
    for line in result.workload.summary.describe():
        out.print(line, markup=False)
    for note in result.record.notes:
        out.print(note, markup=False)
    if result.binding is not None:
        out.print(result.binding.verdict, markup=False)
    for message in result.verdict.messages:
        out.print(f"{result.verdict.status.value}: {message}", markup=False)
    if result.summary.too_few:
        out.print(f"too few samples for: {', '.join(result.summary.too_few)}", markup=False)


def _answer(result: RunResult) -> str:
    """Say whether the limits are kept, and whether the run may be believed."""
    missed = [limit.limit.name for limit in result.summary.limits if not limit.is_met]
    if not result.summary.limits:
        kept = f"{number(result.summary.overall.output_tokens_per_s)} output tokens/s; no limits were given"
    else:
        kept = f"the run misses {', '.join(missed)}" if missed else "the run keeps every limit"
    doubts = f": {result.verdict.messages[0]}" if result.verdict.messages else ""
    return f"{kept}. {result.verdict.status.value}{doubts}"


def _replicas(fleet: Mapping[str, Any]) -> Table:
    """What each replica of a fleet did."""
    table = Table(title="replicas", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("requests", "tokens out", "busy", "hits", "preempted", "rented"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in fleet["replicas"]:
        table.add_row(
            each["name"],
            number(each["num_requests"]),
            f"{each['num_output_tokens']:,}",
            _percent(each["busy"]),
            _percent(each["prefix_hit_rate"]),
            number(each["num_preemptions"]),
            seconds(each["rented_s"]),
        )
    return table


def _percent(share: float | None) -> str:
    return number(None) if share is None else f"{share:.0%}"
