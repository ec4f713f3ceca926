"""An axis of a plot that shows one searched parameter: numbers on the scale of the search, choices side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from matplotlib.axes import Axes

from workbench.report import canvas
from workbench.report.facts import StudyFacts, TrialFacts
from workbench.report.quantities import parameter


def place_on(panel: Axes, which: Literal["x", "y"], study: StudyFacts, name: str) -> Callable[[TrialFacts], float]:
    """Set up the axis for every value that was tried or could be; returns where on it a trial lies."""
    dimension, order = study.space[name], study.choices_of(name)
    axis = panel.xaxis if which == "x" else panel.yaxis
    if order is not None:
        positions = {value: float(index) for index, value in enumerate(order)}
        axis.set_ticks(range(len(order)), labels=[parameter(value) for value in order])
        (panel.set_xlim if which == "x" else panel.set_ylim)(-0.6, len(order) - 0.4)
        return lambda trial: positions[trial.params[name]]
    values = [trial.params[name] for trial in study.trials if name in trial.params]
    span = [value for value in (*values, dimension.low, dimension.high) if value is not None]
    if dimension.log and min(span) > 0:
        canvas.log_axis(panel, which, span, powers_of_two=3 < max(span) / min(span) < 1e5)
    else:
        canvas.number_axis(axis, 6)
        panel.margins(x=0.06) if which == "x" else panel.margins(y=0.06)
    return lambda trial: float(trial.params[name])
