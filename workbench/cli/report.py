"""Reports in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from workbench.cli.console import number, out
from workbench.services.report import find_run, find_study, report_in_dialect, write_report

_STATISTICS = ("mean", "std", "p50", "p90", "p95", "p99", "num_samples")
_WIDTH = 112
"""Columns for the longest name and all statistics; cut names would be of no use in a file either."""


def report_command(path: Path, *, dialect: str | None, as_json: bool) -> None:
    from workbench.cli.main import print_json

    if dialect is not None:
        values = report_in_dialect(find_run(path), dialect)
        if as_json:
            print_json(values)
        else:
            render_dialect(values)
        return
    paths = write_report(find_study(path))
    if as_json:
        print_json({"report": {name: str(path) for name, path in paths.items()}})
    else:
        for written in paths.values():
            out.print(str(written), markup=False)


def render_dialect(values: dict[str, Any]) -> None:
    """Distributions as rows, single figures above them, definitions below."""
    figures: dict[str, Any] = values["figures"]
    out.print(f"{values['run']}: in the terms of {values['dialect']}", markup=False)
    single = Table(show_header=False)
    table = Table()
    table.add_column("", no_wrap=True)
    for statistic in _STATISTICS:
        table.add_column("samples" if statistic == "num_samples" else statistic, justify="right")
    for name, value in figures.items():
        if isinstance(value, dict):
            table.add_row(name, *(number(value[statistic]) for statistic in _STATISTICS))
        else:
            single.add_row(name, number(value))
    out.print(single)
    Console(highlight=False, soft_wrap=True, width=max(out.width, _WIDTH)).print(table)
    for name, definition in values["definitions"].items():
        out.print(f"{name}: {definition}", markup=False)
