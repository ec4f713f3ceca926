"""Pictures of an analysis as PNG files. Object API only: nothing global, no window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from workbench.services.analyze import Analysis
from workbench.workload.analysis import counts_per_bin

_MAX_POINTS = 20_000
_DPI = 110
_BLUE, _ORANGE = "#2a6f97", "#d1495b"


def write_plots(analysis: Analysis, directory: Path) -> list[Path]:
    """`lengths.png`, `input_output.png` and, with times, `rate.png`."""
    directory.mkdir(parents=True, exist_ok=True)
    figures = {"lengths": _lengths(analysis), "input_output": _input_output(analysis)}
    if analysis.arrivals.span_s is not None and analysis.arrival_s is not None:
        figures["rate"] = _rate(analysis.arrival_s, analysis.arrivals.span_s)
    paths = []
    for name, figure in figures.items():
        figure.suptitle(f"{Path(analysis.path).name}: {len(analysis.input_tokens)} requests", fontsize=10)
        path = directory / f"{name}.png"
        canvas: Any = FigureCanvasAgg(figure)
        canvas.print_png(str(path))
        paths.append(path)
    return paths


def _figure(columns: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.5 * columns, 3.8), dpi=_DPI, layout="constrained")
    axes: Any = figure.subplots(1, columns, squeeze=False)
    return figure, list(axes[0])


def _sample(count: int) -> npt.NDArray[np.int64]:
    """Evenly spread rows, at most as many as a picture can show."""
    return np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).astype(np.int64))


def _lengths(analysis: Analysis) -> Figure:
    figure, (histogram, cumulative) = _figure(2)
    rows = _sample(len(analysis.input_tokens))
    columns = (("input", analysis.input_tokens[rows], _BLUE), ("output", analysis.output_tokens[rows], _ORANGE))
    largest = max(int(tokens.max()) for _, tokens, _ in columns)
    edges = np.unique(np.geomspace(1, max(largest, 2) + 1, 40).astype(np.int64))
    for name, tokens, color in columns:
        histogram.hist(np.maximum(tokens, 1), bins=edges.tolist(), color=color, alpha=0.6, label=name)
        ordered = np.sort(np.maximum(tokens, 1))
        cumulative.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), color=color, label=name)
    for axes in (histogram, cumulative):
        axes.set_xscale("log")
        axes.set_xlabel("length (tokens)")
        axes.legend(frameon=False)
    histogram.set_ylabel("requests" if len(rows) == len(analysis.input_tokens) else f"requests (sample of {len(rows)})")
    cumulative.set_ylabel("share of requests (fraction)")
    cumulative.grid(alpha=0.3)
    return figure


def _input_output(analysis: Analysis) -> Figure:
    figure, (axes,) = _figure(1)
    rows = _sample(len(analysis.input_tokens))
    axes.scatter(
        np.maximum(analysis.input_tokens[rows], 1),
        np.maximum(analysis.output_tokens[rows], 1),
        s=6,
        alpha=0.4,
        color=_BLUE,
        linewidths=0,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("input (tokens)")
    axes.set_ylabel("output (tokens)")
    axes.grid(alpha=0.3)
    return figure


def _rate(arrival_s: npt.NDArray[np.float64], span_s: float) -> Figure:
    figure, (axes,) = _figure(1)
    width_s = next(
        (width for width in (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0) if span_s / width <= 600), span_s / 300
    )
    counts = counts_per_bin(arrival_s, width_s)
    assert counts is not None
    starts_s = np.arange(len(counts)) * width_s
    axes.step(starts_s, counts / width_s, where="post", color=_BLUE, linewidth=0.9)
    axes.axhline(len(arrival_s) / span_s, color=_ORANGE, linewidth=1, label=f"mean {len(arrival_s) / span_s:.3g}/s")
    axes.set_xlabel("time from the first arrival (s)")
    axes.set_ylabel(f"arrivals per s, in windows of {width_s:g} s")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure
