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
    from workbench.cli.console import write
    from workbench.services.doctor import diagnose

    diagnosis = diagnose(path)
    if as_json:
        from workbench.cli.main import print_json

        print_json(diagnosis.to_json())
        return
    write(f"{diagnosis.path} ({diagnosis.source})")
    if not diagnosis.findings:
        write("nothing found")
    for number, finding in enumerate(diagnosis.findings, 1):
        where = f" [{finding.where}]" if finding.where else ""
        write(f"{number}. {finding.code}{where}: {finding.symptom}", 3)
        write(f"   cause: {finding.cause}", 10)
        for change in finding.changes:
            write(f"   change: {change}", 11)
    for note in diagnosis.notes:
        write(f"note: {note}")
