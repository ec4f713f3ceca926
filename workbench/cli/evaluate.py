"""`workbench evaluate` and `workbench catalog`: predictions against measurements, and what is known of hardware."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from workbench.cli.console import number, out
from workbench.cli.examples import example

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Csv = Annotated[Path, typer.Argument(metavar="FILE.csv")]

evaluate_app = typer.Typer(help="Hold the cost model against measurements.", no_args_is_help=True)
catalog_app = typer.Typer(help="GPUs and models that a simulation knows.", no_args_is_help=True)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


@evaluate_app.command("ops", epilog=example("workbench evaluate ops linear.csv"))
def evaluate_ops_command(file: Csv, as_json: Json = False) -> None:
    """Predict the rows of an operator table; error = predicted / measured - 1."""
    from workbench.services.evaluate_ops import evaluate_ops

    result = evaluate_ops(file)
    if as_json:
        _print_json(result)
        return
    writer = csv.writer(sys.stdout)
    shown = [name for name in result["rows"][0] if name != "source"]
    writer.writerow(shown)
    for row in result["rows"]:
        writer.writerow([number(row[name]) for name in shown])
    known = sum(row["error"] is not None for row in result["rows"])
    tail = "" if not known else f"; median error {result['median']:.1%}, P90 {result['p90']:.1%}"
    out.print(f"{file.name}: {known} of {len(result['rows'])} rows predicted{tail}", markup=False)


@evaluate_app.command("e2e", epilog=example("workbench evaluate e2e runs.csv --json"))
def evaluate_e2e_command(file: Csv, as_json: Json = False) -> None:
    """Simulate published runs and compare every figure they have, in vLLM's definitions."""
    from workbench.services.evaluate_e2e import evaluate_e2e

    result = evaluate_e2e(file)
    if as_json:
        _print_json(result)
        return
    for row in result["rows"]:
        if row["reason"] is not None:
            out.print(f"{row['id']}: not built: {row['reason']}", markup=False)
            _print_notes(row)
            continue
        parts = [f"{name} {row['predicted'][name]:.4g} ({error:+.0%})" for name, error in row["errors"].items()]
        out.print(f"{row['id']}: {', '.join(parts)}", markup=False)
        _print_notes(row)


def _print_notes(row: Any) -> None:
    for note in row["notes"]:
        out.print(f"  {note}", markup=False)


@evaluate_app.command(
    "trace", epilog=example("workbench evaluate trace t.csv --meta t.meta.json --calibrate-fraction 0.1")
)
def evaluate_trace_command(
    file: Csv,
    meta: Annotated[Path, typer.Option("--meta", metavar="FILE.meta.json", help="Engine arguments of the trace.")],
    calibrate_fraction: Annotated[
        float, typer.Option(help="Share of the rows, from the first on, to calibrate on; the others are judged.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Replay a per-request trace of a real server and compare percentiles."""
    from workbench.services.evaluate_trace import evaluate_trace
    from workbench.workload.account import ImportAccount

    result = evaluate_trace(file, meta, calibrate_fraction)
    if as_json:
        _print_json(result)
        return
    out.print(f"{ImportAccount(**result['requests']).describe()}", markup=False)
    for problem in result["problems"]:
        out.print(problem, markup=False)
    out.print(f"{result['rows']} rows, calibrated on the first {result['calibrated_on']}", markup=False)
    table = Table(box=None)
    for title in ("", "predicted", "measured", "error"):
        table.add_column(title, justify="right" if title else "left")
    for name, statistics in result["metrics"].items():
        for statistic, row in statistics.items():
            values = [f"{row[key] * 1e3:,.1f} ms" for key in ("predicted", "measured")]
            table.add_row(f"{name} {statistic}", *values, f"{row['error']:+.1%}")
    out.print(table)


@catalog_app.command("gpus", epilog=example("workbench catalog gpus"))
def catalog_gpus(as_json: Json = False) -> None:
    """GPUs: data sheet, price, and where the cost model was measured."""
    from dataclasses import asdict

    from engine.catalog import list_gpus
    from engine.executor.cost_model.profiles import profile_for

    rows = [
        {**asdict(gpu), "profile": profile_for(gpu).provenance.get("transferred_from", "own")} for gpu in list_gpus()
    ]
    if as_json:
        _print_json({"gpus": rows})
        return
    table = Table(box=None)
    titles = ("id", "GiB", "GB/s", "bf16\nTFLOP/s", "fp8\nTFLOP/s", "link\nGB/s", "$/h", "cost model")
    for title in titles:
        left = title in ("id", "cost model")
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["id"],
            f"{row['memory_bytes'] / 1024**3:.0f}",
            f"{row['bandwidth'] / 1e9:,.0f}",
            f"{row['bf16_flops'] / 1e12:,.0f}",
            "–" if row["fp8_flops"] is None else f"{row['fp8_flops'] / 1e12:,.0f}",
            "–" if row["link_bandwidth"] is None else f"{row['link_bandwidth'] / 1e9:,.0f}",
            "–" if row["price_per_hour"] is None else f"{row['price_per_hour']:.2f}",
            "measured" if row["profile"] == "own" else f"like {row['profile']}",
        )
    out.print(table)


@catalog_app.command("models", epilog=example("workbench catalog models"))
def catalog_models(as_json: Json = False) -> None:
    """Models: geometry and what a token of KV cache takes."""
    from dataclasses import asdict

    from engine.catalog import list_models
    from engine.kv_geometry import KvGeometry

    rows = []
    for spec in list_models():
        kv = KvGeometry.of(spec, dtype="bfloat16", block_size=16).bytes_per_token
        rows.append({**asdict(spec), "num_parameters": spec.num_parameters, "kv_bytes_per_token": kv})
    if as_json:
        _print_json({"models": rows})
        return
    table = Table(box=None)
    for title in ("model", "parameters", "layers", "heads/KV", "window", "KV per token"):
        table.add_column(title, justify="left" if title == "model" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['num_parameters'] / 1e9:.1f} B",
            str(row["num_layers"]),
            f"{row['num_heads']}/{row['num_kv_heads']}",
            f"{row['max_position']:,}",
            f"{row['kv_bytes_per_token'] / 1024:.0f} KiB",
        )
    whole = out.measure(table, options=out.options.update(max_width=200)).maximum  # a name that is cut is of no use
    Console(highlight=False, width=max(whole, out.width)).print(table)
