"""The objective over two parameters at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.report import canvas, palette
from workbench.report.facts import StudyFacts, TrialFacts
from workbench.report.parameter_axis import place_on
from workbench.report.quantities import axis_label, parameter_label, scale_of
from workbench.report.rate_words import COARSE

_SPREAD = 0.5
"""Of neighbouring choices, over which points on the same one are spread so that none hides another."""

PlaceOf = Callable[[TrialFacts], float]


def draw_pair(study: StudyFacts) -> Figure | None:
    """Every trial where its two parameters put it, coloured by its objective; small where it may not win."""
    if study.pair is None:
        return None
    first, second = study.pair
    known = [trial for trial in study.trials if first in trial.params and second in trial.params]
    scored = [trial for trial in known if trial.is_scored]
    if not scored:
        return None
    figure, (panel, *_) = canvas.new_figure(1, 1, 4.6)
    places = (
        _spread(place_on(panel, "x", study, first), study, first),
        _spread(place_on(panel, "y", study, second), study, second),
    )
    factor, unit = scale_of(study.objective, [trial.objective for trial in scored])
    points = _scored(panel, scored, places, factor)
    _unscored(panel, known, places)
    for name, trial in study.compared:
        if trial in known:
            _mark(panel, trial, places, name)
    bar = figure.colorbar(points, ax=panel, pad=0.02)
    bar.set_label(axis_label(study.objective, unit), fontsize=9.5)
    bar.ax.tick_params(labelsize=8.5)
    canvas.number_axis(bar.ax.yaxis, 5)
    panel.set_xlabel(parameter_label(first))
    panel.set_ylabel(parameter_label(second))
    canvas.legend_above(figure, panel)
    return figure


def _spread(place: PlaceOf, study: StudyFacts, name: str) -> PlaceOf:
    """The same places; on an axis of choices beside each other, by the trial's number."""
    if study.choices_of(name) is None:
        return place
    return lambda trial: place(trial) + ((trial.number * 0.618) % 1.0 - 0.5) * _SPREAD


def _scored(panel: Axes, scored: Sequence[TrialFacts], places: tuple[PlaceOf, ...], factor: float) -> Any:
    """Draws them, the better ones on top; what the colour bar is made of."""
    values = [(trial.objective or 0.0) * factor for trial in scored]
    points = None
    looks: list[tuple[tuple[bool, bool], dict[str, Any]]] = [
        ((False, False), {"s": 40, "marker": "D", "edgecolors": palette.INK, "label": "cannot win"}),
        ((True, True), {"s": 55, "marker": "^", "edgecolors": palette.INK, "label": COARSE}),
        ((True, False), {"s": 85, "marker": "o", "edgecolors": "white", "label": "complete"}),
    ]
    for kind, look in looks:
        some = [trial for trial in scored if (trial.may_win, trial.may_win and trial.is_coarse) == kind]
        if some:
            points = panel.scatter(
                [places[0](trial) for trial in some],
                [places[1](trial) for trial in some],
                c=[(trial.objective or 0.0) * factor for trial in some],
                cmap=palette.SCALE,
                vmin=min(values),
                vmax=max(values),
                linewidths=0.8,
                zorder=3,
                **look,
            )
    return points


def _unscored(panel: Axes, known: Sequence[TrialFacts], places: tuple[PlaceOf, ...]) -> None:
    for state, marker in canvas.STATE_MARKERS.items():
        some = [trial for trial in known if trial.state == state]
        if some:
            panel.scatter(
                [places[0](trial) for trial in some],
                [places[1](trial) for trial in some],
                marker=marker,
                color=palette.INK,
                s=26,
                linewidths=1,
                alpha=0.6,
                label=f"{palette.STATE_NAMES[state]} (no objective)",
            )


def _mark(panel: Axes, trial: TrialFacts, places: tuple[PlaceOf, ...], name: str) -> None:
    is_default = trial.number == 0
    panel.scatter(
        places[0](trial),
        places[1](trial),
        s=210,
        marker="s" if is_default else "o",
        facecolors="none",
        edgecolors=palette.DEFAULT if is_default else palette.BEST,
        linewidths=2.2,
        label=name,
        zorder=5,
    )
