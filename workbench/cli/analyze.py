"""`workbench analyze` in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from workbench.cli.console import number, out
from workbench.services.analyze import Analysis, analyze


def analyze_command(
    path: Path,
    *,
    tokenizer: str | None,
    overrides: list[str],
    directory: Path | None,
    write: Path | None,
    as_json: bool,
) -> None:
    analysis = analyze(path, tokenizer=tokenizer, overrides=overrides)
    written: list[Path] = []
    if write is not None:
        from workbench.services.fit_scenario import write_fitted_scenario

        written.append(write_fitted_scenario(analysis, write))
    if directory is not None and len(analysis.input_tokens):
        from workbench.services.analyze_plots import write_plots

        written += write_plots(analysis, directory)
    if as_json:
        from workbench.cli.main import print_json

        print_json(analysis.to_json() | {"written": [str(item) for item in written]})
        return
    render(analysis)
    for item in written:
        out.print(f"written: {item}", markup=False)


def render(analysis: Analysis) -> None:
    """Counts, lengths, arrivals, sharing and what needs attention."""
    out.print(
        f"{analysis.path} ({analysis.format}): {_unit(analysis)}: {analysis.account.describe()}; "
        f"{len(analysis.input_tokens)} requests described",
        markup=False,
    )
    _render_lengths(analysis)
    _render_arrivals(analysis)
    sharing = analysis.sharing
    if sharing is not None and sharing.by_block_size:
        shares = ", ".join(f"{size}: {share:.1%}" for size, share in sharing.by_block_size.items())
        out.print(f"prefix blocks seen before, by block size in tokens: {shares}", markup=False)
    if analysis.model_len is not None:
        refused = {limit: share for limit, share in analysis.model_len.refused.items() if share > 0}
        shares = ", ".join(f"{limit}: {share:.2%}" for limit, share in refused.items()) or "none from 1024 on"
        out.print(f"requests over max_model_len: {shares}", markup=False)
        out.print(f"suggested max_model_len: {analysis.model_len.suggested}", markup=False)
    for problem in analysis.problems:
        out.print(f"{analysis.path}: {problem.describe()}", markup=False)
    for note in analysis.notes:
        out.print(note, markup=False)
    if analysis.fingerprint is not None:
        out.print(f"fingerprint: {analysis.fingerprint}", markup=False)


def _unit(analysis: Analysis) -> str:
    return "conversations" if analysis.rows_are == "conversations" else "rows"


def _render_lengths(analysis: Analysis) -> None:
    table = Table()
    table.add_column("tokens")
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    for name in names:
        table.add_column(name, justify="right")
    columns: dict[str, Any] = {"input": analysis.inputs, "output": analysis.outputs, "total": analysis.totals}
    for side, figures in columns.items():
        if figures is not None:
            table.add_row(side, *(f"{getattr(figures, name):.0f}" for name in names))
    out.print(table)


def _render_arrivals(analysis: Analysis) -> None:
    arrivals = analysis.arrivals
    if arrivals.span_s is None:
        out.print("arrivals: no times" if analysis.arrival_s is None else "arrivals: all at one time", markup=False)
        return
    out.print(
        f"arrivals: {number(arrivals.rate_per_s)} per s over {arrivals.span_s:.3f} s, CV of gaps "
        f"{number(arrivals.cv)}, peak to mean {number(arrivals.peak_to_mean_1s)} (1 s), "
        f"{number(arrivals.peak_to_mean_1min)} (1 min)",
        markup=False,
    )
    if arrivals.head_s:
        out.print(f"first arrival at {number(arrivals.head_s)} s on the file's clock", markup=False)
    out.print(
        f"longest gap {number(arrivals.longest_gap_s)} s at {number(arrivals.longest_gap_at_s)} s; "
        f"{arrivals.num_long_gaps} gaps over ten times the mean",
        markup=False,
    )
    for index, part in enumerate(analysis.thirds, 1):
        out.print(
            f"third {index}: {number(part.rate_per_s)} per s, mean input {part.input_mean:.0f}, "
            f"mean output {part.output_mean:.0f} tokens",
            markup=False,
        )
