"""`workbench compare` in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from workbench.services.compare import Comparison, Difference, Subject

Side = Annotated[Path, typer.Argument(help="Folder of a run or study, or its name under reports/.")]


def compare_command(
    a: Side,
    b: Side,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Compare two runs or studies: parameters that differ, every figure with its difference, verdicts."""
    from workbench.services.compare import compare

    found = compare(a, b)
    if as_json:
        from workbench.cli.main import print_json

        print_json(found.to_json())
    else:
        _render(found)


def _render(found: Comparison) -> None:
    from rich.table import Table

    from workbench.cli.console import out, write
    from workbench.report.quantities import label, parameter, shown, signed_share

    for side, subject in (("A", found.a), ("B", found.b)):
        write(f"{side}: {_describe(subject)}")
    for side in ("A", "B"):
        names = [label(each.name) for each in found.metrics if each.better == side]
        if names:
            write(f"{side} is better in {', '.join(names)}")
    if not any(each.better for each in found.metrics):
        write("no figure differs by more than chance explains")
    parameters = Table(title="Parameters that differ", title_justify="left", box=None, pad_edge=False)
    for header in ("parameter", "A", "B"):
        parameters.add_column(header, overflow="fold")
    for name, a, b in found.parameters:
        parameters.add_row(name, parameter(a), parameter(b))
    if found.parameters:
        out.print(parameters)
    else:
        write("no parameter differs")
    figures = Table(title="Figures", title_justify="left", box=None, pad_edge=False)
    figures.add_column("", no_wrap=True)
    for header in ("A", "B", "B over A", "95 % interval"):
        figures.add_column(header, justify="right")
    for each in found.metrics:
        row = (shown(each.name, each.a), shown(each.name, each.b), signed_share(each.relative))
        figures.add_row(label(each.name), *row, _span(each))
    out.print(figures)
    for note in found.notes:
        write(f"note: {note}")


def _describe(subject: Subject) -> str:
    trial = "" if subject.trial is None else f" by its trial {subject.trial}"
    conclusion = "" if subject.conclusion is None else f". {subject.conclusion}"
    return f"{subject.kind} {subject.name}{trial}, {subject.verdict or 'without a verdict'}{conclusion}"


def _span(each: Difference) -> str:
    from workbench.report.quantities import number

    if each.low is None or each.high is None:
        return ""
    if each.high >= 1:
        return f"×{number(each.low + 1)} to ×{number(each.high + 1)}"
    return f"{each.low * 100:+.1f} to {each.high * 100:+.1f} %"
