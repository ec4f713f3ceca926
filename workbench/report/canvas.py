"""The look that all figures share: sizes, palette, markers, axes; matplotlib objects only, no global state."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.patheffects as effects
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from workbench.report.palette import GRID, INK, LIMIT
from workbench.report.quantities import number

STATE_MARKERS = {"INFEASIBLE": "x", "FAILED": "v", "PRUNED": "d"}
WIDTH_IN = 10.0
_DPI = 150
_SMALL, _TEXT, _TITLE = 8.5, 9.5, 10.5


def new_figure(num_rows: int, num_columns: int, height_in: float, **grid: Any) -> tuple[Figure, list[Axes]]:
    """A figure of the common width with its axes, row by row."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(num_rows, num_columns, **grid)).ravel().tolist()
    for one in axes:
        _plain(one)
    return figure, axes


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#9AA0A8")
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=_SMALL, colors=INK, length=3)
    axes.xaxis.label.set_fontsize(_TEXT)
    axes.yaxis.label.set_fontsize(_TEXT)


def title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=_TITLE, color=INK, loc="left", pad=6)


def legend_above(figure: Figure, axes: Axes) -> None:
    """One legend for the figure, outside the axes, so that it never covers data."""
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        figure.legend(
            list(unique.values()),
            list(unique),
            loc="outside upper left",
            ncols=len(unique) if len(unique) <= 5 else 4,
            frameon=False,
            fontsize=_TEXT,
        )


def number_axis(axis: Any, num_ticks: int = 6, *, whole: bool = False) -> None:
    """Linear axis with few ticks, thousands separated."""
    axis.set_major_locator(MaxNLocator(num_ticks, integer=whole))
    axis.set_major_formatter(FuncFormatter(_tick))


def log_axis(axes: Axes, which: str, values: Iterable[float], *, powers_of_two: bool = False) -> None:
    """Logarithmic axis with plain numbers at its ticks. `values` must be over 0."""
    sizes = [value for value in values if value > 0]
    if not sizes:
        return
    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("log")
    low, high = min(sizes), max(sizes)
    margin = max(high / low, 1.5) ** 0.06
    getattr(axes, f"set_{which}lim")(low / margin, high * margin)
    if powers_of_two:
        first, last = int(np.floor(np.log2(low))), int(np.ceil(np.log2(high)))
        stride = max(1, -(-(last - first) // 6))
        axis.set_major_locator(FixedLocator([2.0**power for power in range(first, last + 1, stride)]))
    else:
        decades = np.log10(high / low)
        steps = (1.0,) if decades > 4 else (1.0, 3.0) if decades > 1.5 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(base=10, subs=steps, numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(_tick))


def needs_log(values: Sequence[float]) -> bool:
    """The values span so much that a linear axis would hide most of them."""
    sizes = [value for value in values if value > 0]
    return len(sizes) == len(values) and len(sizes) > 1 and max(sizes) / min(sizes) > 15


def name_point(axes: Axes, x: float, y: float, text: str, color: str, *, above: bool) -> None:
    """Label a point, towards the middle of the axes so that the label stays inside."""
    (left, right), log = axes.get_xlim(), axes.get_xscale() == "log"
    middle = np.sqrt(left * right) if log else (left + right) / 2
    to_left = x > middle
    label = axes.annotate(
        text,
        (x, y),
        xytext=(-9 if to_left else 9, 8 if above else -8),
        textcoords="offset points",
        ha="right" if to_left else "left",
        va="bottom" if above else "top",
        fontsize=_TEXT,
        fontweight="bold",
        color=color,
        zorder=6,
    )
    label.set_path_effects([effects.withStroke(linewidth=3, foreground="white")])


def name_line(axes: Axes, text: str, *, x: float | None = None, y: float | None = None, at_left: bool = False) -> None:
    """Draw and label a limit: vertical at `x` or horizontal at `y` (its label at the right end unless `at_left`)."""
    style: dict[str, Any] = {"color": LIMIT, "linewidth": 1.2, "linestyle": (0, (4, 3)), "zorder": 1.5}
    if x is not None:
        axes.axvline(x, **style)
        place: dict[str, Any] = {"x": x, "y": 0.03, "transform": axes.get_xaxis_transform(), "rotation": 90}
        place |= {"ha": "left", "va": "bottom"}
    else:
        assert y is not None, "a limit lies at x or at y"
        axes.axhline(y, **style)
        place = {"x": 0.005 if at_left else 0.995, "y": y, "transform": axes.get_yaxis_transform(), "va": "bottom"}
        place["ha"] = "left" if at_left else "right"
    label = axes.text(s=text, fontsize=_SMALL, color=LIMIT, **place)
    label.set_path_effects([effects.withStroke(linewidth=3, foreground="white")])


def note(axes: Axes, text: str) -> None:
    """Say why a panel shows nothing, in its middle."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=_TEXT, color="#6B7280")
    axes.set_xticks([])
    axes.set_yticks([])


def png(figure: Figure) -> bytes:
    """The figure as PNG, the same bytes for the same content."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI, metadata={"Software": None})
    return stream.getvalue()


def _tick(value: float, _: Any) -> str:
    return f"{value:,.6g}" if abs(value) < 1e6 else number(value)
