"""`workbench list` in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def list_command(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where results are stored.")] = Path("reports"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """List the studies, runs and plans of a folder with model, GPU, date and result."""
    from workbench.services.listing import list_stored

    found = list_stored(folder)
    if as_json:
        from workbench.cli.main import print_json

        print_json({"folder": str(folder), "entries": [each.to_json() for each in found]})
        return
    from rich.table import Table

    from workbench.cli.console import out, write

    if not found:
        write(f"{folder}: holds no study, run or plan. `workbench run` and `workbench sweep` make them")
        return
    table = Table("kind", box=None, pad_edge=False)
    table.add_column("name", no_wrap=True, overflow="fold")
    for header in ("model", "on", "date", "result"):
        table.add_column(header, overflow="fold")
    for each in found:
        day = (each.date or "")[:10]
        table.add_row(each.kind, each.name, each.model, each.gpu, day, each.problem or each.result)
    out.print(table)
