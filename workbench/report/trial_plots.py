"""Figures about the trials of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.report import canvas, palette
from workbench.report.facts import StudyFacts, TrialFacts
from workbench.report.parameter_axis import place_on
from workbench.report.quantities import (
    axis_label,
    label,
    parameter_label,
    scale_of,
)
from workbench.report.quantities import limit as shown_limit
from workbench.report.rate_words import COARSE


def draw_objective(study: StudyFacts) -> Figure | None:
    """Objective per trial with the best so far; what has no objective on a strip of its own below."""
    scored = [trial for trial in study.trials if trial.is_scored]
    if not scored:
        return None
    others = [state for state in canvas.STATE_MARKERS if study.count(state)]
    rows = 2 if others else 1
    heights = {"height_ratios": [6, 0.35 * len(others) + 0.25]} if others else {}
    figure, axes = canvas.new_figure(rows, 1, 3.9 + 0.25 * len(others), sharex=True, gridspec_kw=heights)
    factor, unit = scale_of(study.objective, [trial.objective for trial in scored])
    _scatter(axes[0], study, scored, lambda t: float(t.number), lambda t: (t.objective or 0.0) * factor)
    _best_so_far(axes[0], study, factor)
    axes[0].set_ylabel(axis_label(study.objective, unit))
    canvas.number_axis(axes[0].yaxis)
    for row, state in enumerate(others):
        numbers = [trial.number for trial in study.trials if trial.state == state]
        axes[1].scatter(
            numbers, [row] * len(numbers), marker=canvas.STATE_MARKERS[state], color=palette.INK, s=36, zorder=3
        )
    if others:
        axes[1].set_yticks(range(len(others)), [palette.STATE_NAMES[state] for state in others])
        axes[1].set_ylim(-0.6, len(others) - 0.4)
        axes[1].spines["left"].set_visible(False)
        axes[1].tick_params(axis="y", length=0)
    last = max(trial.number for trial in study.trials)
    axes[-1].set_xlim(-0.6, max(last, 1) + 0.6)
    axes[-1].set_xlabel("Trial (0 = default configuration)")
    canvas.number_axis(axes[-1].xaxis, 12, whole=True)
    canvas.legend_above(figure, axes[0])
    return figure


def draw_tradeoff(study: StudyFacts) -> Figure | None:
    """TTFT and TPOT against output throughput, one point per complete trial."""
    names = [study.judged(head) for head in ("ttft_s", "tpot_s")]
    shown = {
        name: [t for t in study.trials if t.value(name) is not None and t.value("output_tokens_per_s") is not None]
        for name in names
    }
    if not any(shown.values()):
        return None
    figure, axes = canvas.new_figure(1, 2, 3.9)
    for panel, name in zip(axes, names, strict=True):
        trials = shown[name]
        canvas.title(panel, label(name))
        if not trials:
            canvas.note(panel, "no trial has this figure")
            continue
        values = [float(t.value(name) or 0.0) for t in trials]
        factor, unit = scale_of(name, values)
        limit = study.limit_of(name)
        x_of = _value_of("output_tokens_per_s", 1.0)
        y_of = _value_of(name, factor)
        canvas.number_axis(panel.xaxis, 5)
        if canvas.needs_log(values):
            canvas.log_axis(panel, "y", [v * factor for v in values] + ([limit * factor] if limit else []))
        else:
            canvas.number_axis(panel.yaxis)
        _scatter(panel, study, trials, x_of, y_of)
        _ring_front(panel, study, trials, x_of, y_of)
        panel.margins(0.12)
        if limit is not None:
            canvas.name_line(
                panel, f"SLO limit {shown_limit(limit)}", y=limit * factor, at_left=study.crowds_right(name)
            )
        _name_marked(panel, study, trials, x_of, y_of)
        panel.set_xlabel("Output throughput (tokens/s)")
        panel.set_ylabel(axis_label(name, unit))
    canvas.legend_above(figure, next(panel for panel, name in zip(axes, names, strict=True) if shown[name]))
    return figure


def draw_effects(study: StudyFacts) -> Figure | None:
    """The objective against each parameter, one panel each."""
    scored = [trial for trial in study.trials if trial.is_scored]
    if not scored or not study.space:
        return None
    count = len(study.space)
    columns = count if count <= 3 else 2 if count == 4 else 3
    rows = -(-count // columns)
    figure, axes = canvas.new_figure(rows, columns, 0.4 + 2.75 * rows, sharey=True)
    factor, unit = scale_of(study.objective, [trial.objective for trial in scored])
    for panel, name in zip(axes, study.space, strict=False):
        _effect(panel, study, scored, name, factor)
        panel.set_xlabel(parameter_label(name).replace(" (", "\n(" if columns > 2 else " ("))
    for index in range(0, count, columns):
        axes[index].set_ylabel(axis_label(study.objective, unit))
    for panel in axes[count:]:
        panel.set_visible(False)
    canvas.number_axis(axes[0].yaxis, 5)
    axes[0].margins(y=0.14)
    canvas.legend_above(figure, axes[0])
    return figure


def draw_importances(study: StudyFacts) -> Figure | None:
    """How much of the objective's variation each parameter explains."""
    if not study.importances:
        return None
    ranked = sorted(study.importances.items(), key=lambda item: item[1])
    figure, (axes, *_) = canvas.new_figure(1, 1, 0.9 + 0.38 * len(ranked))
    shares = [value * 100 for _, value in ranked]
    bars = axes.barh([name for name, _ in ranked], shares, color=palette.BEST, height=0.6)
    axes.bar_label(bars, [f"{value:.0f} %" for value in shares], padding=4, fontsize=9, color=palette.INK)
    axes.set_xlim(0, max(*shares, 1.0) * 1.12)
    axes.set_xlabel(f"Share of the variation of {label(study.objective)} that the parameter alone explains (%)")
    axes.grid(False, axis="y")
    return figure


def _effect(panel: Axes, study: StudyFacts, scored: Sequence[TrialFacts], name: str, factor: float) -> None:
    known = [trial for trial in study.trials if name in trial.params]
    x_of = place_on(panel, "x", study, name)
    have = [trial for trial in scored if name in trial.params]
    _scatter(panel, study, have, x_of, lambda t: (t.objective or 0.0) * factor)
    for state, marker in canvas.STATE_MARKERS.items():
        at = [x_of(trial) for trial in known if trial.state == state]
        if at:
            panel.scatter(
                at,
                [0.035] * len(at),
                transform=panel.get_xaxis_transform(),
                marker=marker,
                color=palette.INK,
                s=22,
                linewidths=1,
                alpha=0.75,
                label=f"{palette.STATE_NAMES[state]} (no objective)",
                clip_on=False,
            )


def _scatter(
    panel: Axes,
    study: StudyFacts,
    trials: Sequence[TrialFacts],
    x_of: Callable[[TrialFacts], float],
    y_of: Callable[[TrialFacts], float],
) -> None:
    """All points: filled where the SLO is kept, hollow where it is missed or the run is in doubt; default and rival
    by colour and shape."""
    marked = {t.number for t in (study.default, study.rival) if t is not None}
    kinds: list[tuple[str, Any, dict[str, Any]]] = [
        (
            "complete",
            lambda t: t.may_win and not t.is_coarse,
            {"facecolors": palette.TRIAL, "edgecolors": palette.TRIAL},
        ),
        (
            COARSE,
            lambda t: t.may_win and t.is_coarse,
            {"facecolors": palette.TRIAL, "edgecolors": palette.TRIAL, "marker": "^", "alpha": 0.45},
        ),
        ("misses the SLO", lambda t: bool(t.missed), {"facecolors": "none", "edgecolors": palette.TRIAL}),
        (
            "run in doubt",
            lambda t: not t.may_win and not t.missed,
            {"facecolors": "none", "edgecolors": palette.TRIAL, "marker": "s"},
        ),
    ]
    for name, chosen, style in kinds:
        some = [t for t in trials if chosen(t) and t.number not in marked]
        if some:
            panel.scatter(
                [x_of(t) for t in some], [y_of(t) for t in some], s=38, linewidths=1.4, label=name, zorder=3, **style
            )
    for trial, name, color, marker in _marked(study):
        if trial in trials:
            is_kept = not trial.missed
            panel.scatter(
                x_of(trial),
                y_of(trial),
                s=95 if marker == "s" else 190,
                marker=marker,
                facecolors=color if is_kept else "white",
                edgecolors=color,
                linewidths=1.8,
                label=name if is_kept else f"{name}, misses the SLO",
                zorder=5,
            )


def _ring_front(
    panel: Axes,
    study: StudyFacts,
    trials: Sequence[TrialFacts],
    x_of: Callable[[TrialFacts], float],
    y_of: Callable[[TrialFacts], float],
) -> None:
    some = [trial for trial in trials if trial.number in study.front]
    if some:
        panel.scatter(
            [x_of(trial) for trial in some],
            [y_of(trial) for trial in some],
            s=260,
            facecolors="none",
            edgecolors=palette.MEMORY,
            linewidths=1.8,
            label="on the Pareto front",
            zorder=4,
        )


def _marked(study: StudyFacts) -> list[tuple[TrialFacts, str, str, str]]:
    """(trial, name, colour, marker) of default and rival; one entry where they are the same."""
    looks = {0: (palette.DEFAULT, "s")}
    return [(trial, name, *looks.get(trial.number, (palette.BEST, "*"))) for name, trial in study.compared]


def _name_marked(
    panel: Axes,
    study: StudyFacts,
    trials: Sequence[TrialFacts],
    x_of: Callable[[TrialFacts], float],
    y_of: Callable[[TrialFacts], float],
) -> None:
    points = [(x_of(t), y_of(t), name, color) for t, name, color, _ in _marked(study) if t in trials]
    highest = max((y for _, y, _, _ in points), default=0.0)
    for x, y, name, color in points:
        canvas.name_point(panel, x, y, name, color, above=len(points) == 1 or y == highest)


def _best_so_far(panel: Axes, study: StudyFacts, factor: float) -> None:
    able = [trial for trial in study.trials if trial.may_win]
    if not able:
        return
    values = np.array([trial.objective for trial in able], dtype=np.float64) * factor
    best = np.maximum.accumulate(values) if study.maximize else np.minimum.accumulate(values)
    numbers = [trial.number for trial in able]
    last = max(trial.number for trial in study.trials)
    panel.step(
        [*numbers, last], [*best, best[-1]], where="post", color=palette.BEST, linewidth=1.5, label="best so far"
    )


def _value_of(name: str, factor: float) -> Callable[[TrialFacts], float]:
    return lambda trial: (trial.value(name) or 0.0) * factor
