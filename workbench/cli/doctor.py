"""`workbench doctor` in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|STUDY|LOG|METRICS",
            help="Folder of a run or study, a vLLM log, a Prometheus dump or a folder of dumps.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Name the symptom, its cause with the evidence, and the change to make."""
    from workbench.cli.console import out
    from workbench.services.doctor import diagnose

    diagnosis = diagnose(path)
    if as_json:
        from workbench.cli.main import print_json

        print_json(diagnosis.to_json())
        return
    out.print(f"{diagnosis.path} ({diagnosis.source})", markup=False)
    if not diagnosis.findings:
        out.print("nothing found", markup=False)
    for number, finding in enumerate(diagnosis.findings, 1):
        where = f" [{finding.where}]" if finding.where else ""
        out.print(f"{number}. {finding.code}{where}: {finding.symptom}", markup=False)
        out.print(f"   cause: {finding.cause}", markup=False)
        for change in finding.changes:
            out.print(f"   change: {change}", markup=False)
    for note in diagnosis.notes:
        out.print(f"note: {note}", markup=False)
