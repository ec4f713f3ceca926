"""Interactive charts about the trials of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.report import palette
from workbench.report.facts import StudyFacts, TrialFacts
from workbench.report.quantities import axis_label, limit, parameter, parameter_label, scale_of, shown
from workbench.report.rate_words import COARSE
from workbench.ui.layout import apply_layout

_SYMBOLS = {"INFEASIBLE": "x-thin", "FAILED": "triangle-down", "PRUNED": "diamond"}


def objective_chart(study: StudyFacts) -> go.Figure | None:
    """Objective per trial, the best so far, and at the foot what has no objective."""
    scored = [trial for trial in study.trials if trial.is_scored]
    if not scored:
        return None
    factor, unit = scale_of(study.objective, [trial.objective for trial in scored])
    figure = go.Figure()
    able = [trial for trial in scored if trial.may_win]
    if able:
        best, values = None, []
        for trial in able:
            value = (trial.objective or 0.0) * factor
            best = value if best is None else max(best, value) if study.maximize else min(best, value)
            values.append(best)
        last = max(trial.number for trial in study.trials)
        line = {"color": palette.BEST, "width": 1.5, "shape": "hv"}
        numbers = [*(trial.number for trial in able), last]
        figure.add_scatter(
            x=numbers, y=[*values, values[-1]], mode="lines", line=line, name="best so far", hoverinfo="skip"
        )
    _add_points(figure, study, scored, [t.number for t in scored], [(t.objective or 0.0) * factor for t in scored])
    _add_unscored(figure, study, lambda trial: trial.number)
    _make_room(figure, [(trial.objective or 0.0) * factor for trial in scored])
    figure.update_xaxes(title="Trial (0 = default configuration)")
    if len(study.trials) <= 12:
        figure.update_xaxes(dtick=1)
    figure.update_layout(yaxis_title=axis_label(study.objective, unit))
    return apply_layout(figure, height=400)


def tradeoff_chart(study: StudyFacts, name: str) -> go.Figure | None:
    """One latency statistic against output throughput."""
    trials = [t for t in study.trials if t.value(name) is not None and t.value("output_tokens_per_s") is not None]
    if not trials:
        return None
    values = [t.value(name) or 0.0 for t in trials]
    factor, unit = scale_of(name, values)
    figure = go.Figure()
    throughput = [t.value("output_tokens_per_s") for t in trials]
    _add_points(figure, study, trials, throughput, [value * factor for value in values])
    bound = study.limit_of(name)
    if bound is not None:
        line = {"color": palette.LIMIT, "dash": "dash", "width": 1.2}
        font = {"color": palette.LIMIT}
        place = "top left" if study.crowds_right(name) else "top right"
        figure.add_hline(
            y=bound * factor,
            line=line,
            annotation_text=f"SLO limit {limit(bound)}",
            annotation_font=font,
            annotation_position=place,
        )
    figure.update_xaxes(title="Output throughput (tokens/s)", tickformat=",")
    figure.update_yaxes(title=axis_label(name, unit))
    return apply_layout(figure, height=360, has_legend=False)


def effect_chart(study: StudyFacts, name: str) -> go.Figure | None:
    """The objective against one parameter."""
    scored = [trial for trial in study.trials if trial.is_scored and name in trial.params]
    if not scored:
        return None
    factor, unit = scale_of(study.objective, [trial.objective for trial in scored])
    figure = go.Figure()
    x_of = _place_on(figure.update_xaxes, study, name)
    heights = [(trial.objective or 0.0) * factor for trial in scored]
    _add_points(figure, study, scored, [x_of(trial) for trial in scored], heights)
    _add_unscored(figure, study, x_of, name)
    _make_room(figure, heights)
    figure.update_layout(yaxis_title=axis_label(study.objective, unit))
    return apply_layout(figure, height=300, has_legend=False)


def pair_chart(study: StudyFacts) -> go.Figure | None:
    """The objective, as colour, over the two parameters that are to be seen together."""
    if study.pair is None:
        return None
    scored = [t for t in study.trials if t.is_scored and all(name in t.params for name in study.pair)]
    if not scored:
        return None
    factor, unit = scale_of(study.objective, [trial.objective for trial in scored])
    figure = go.Figure()
    x_of = _place_on(figure.update_xaxes, study, study.pair[0])
    y_of = _place_on(figure.update_yaxes, study, study.pair[1])
    marked = {trial.number: palette.DEFAULT if trial.number == 0 else palette.BEST for _, trial in study.compared}
    figure.add_scatter(
        x=[x_of(trial) for trial in scored],
        y=[y_of(trial) for trial in scored],
        mode="markers",
        marker={
            "color": [(trial.objective or 0.0) * factor for trial in scored],
            "colorscale": palette.SCALE,
            "colorbar": {"title": {"text": axis_label(study.objective, unit), "side": "right"}},
            "opacity": 1.0,
            "size": [13 if trial.may_win else 9 for trial in scored],
            "symbol": [
                "triangle-up" if trial.is_coarse else "circle" if trial.may_win else "diamond" for trial in scored
            ],
            "line": {
                "width": [3 if trial.number in marked else 0.8 for trial in scored],
                "color": [marked.get(trial.number, "white") for trial in scored],
            },
        },
        text=[_hover(study, trial) for trial in scored],
        hovertemplate="%{text}<extra></extra>",
    )
    return apply_layout(figure, height=380, has_legend=False)


def _place_on(update: Callable[..., Any], study: StudyFacts, name: str) -> Callable[[TrialFacts], Any]:
    """Set up an axis for a parameter; returns where on it a trial lies."""
    update(title=parameter_label(name))
    order = study.choices_of(name)
    if order is not None:
        names = [parameter(value) for value in order]
        update(type="category", categoryorder="array", categoryarray=names)
        return lambda trial: parameter(trial.params[name])
    values = [trial.params[name] for trial in study.trials if name in trial.params]
    if study.space[name].log and min(values) > 0:
        ticks = [2**power for power in range(31) if min(values) / 1.5 <= 2**power <= max(values) * 1.5]
        update(type="log", tickvals=ticks[:: max(1, -(-len(ticks) // 8))] or None)
    return lambda trial: trial.params[name]


def _add_points(
    figure: go.Figure, study: StudyFacts, trials: Sequence[TrialFacts], x: Sequence[Any], y: Sequence[float]
) -> None:
    """Filled: keeps the SLO; hollow: misses it; square: the run is in doubt; default and rival stand out."""
    marked = {trial.number: name for name, trial in study.compared}
    groups: dict[str, list[int]] = {}
    for index, trial in enumerate(trials):
        kind = "misses the SLO" if trial.missed else "complete" if trial.may_win else "run in doubt"
        if trial.may_win and trial.is_coarse:
            kind = COARSE
        if trial.number in marked:
            kind = marked[trial.number] + (", misses the SLO" if trial.missed else "")
        groups.setdefault(kind, []).append(index)
    for kind, rows in sorted(groups.items(), key=lambda item: trials[item[1][0]].number in marked):
        first = trials[rows[0]]
        color, shape, size = palette.TRIAL, "circle", 9
        if first.number in marked:
            color = palette.DEFAULT if first.number == 0 else palette.BEST
            shape, size = ("square", 12) if first.number == 0 else ("star", 16)
        elif not first.may_win and not first.missed:
            shape = "square"
        elif kind == COARSE:
            shape = "triangle-up"
        hollow = "-open" if not first.may_win else ""
        figure.add_scatter(
            x=[x[row] for row in rows],
            y=[y[row] for row in rows],
            mode="markers",
            name=kind,
            marker={"color": color, "symbol": shape + hollow, "size": size, "line": {"width": 1.8, "color": color}},
            text=[_hover(study, trials[row]) for row in rows],
            hovertemplate="%{text}<extra></extra>",
        )


def _make_room(figure: go.Figure, heights: Sequence[float]) -> None:
    """Leave the foot of the axes to trials without an objective."""
    span = (max(heights) - min(heights)) or abs(max(heights)) or 1.0
    low, high = min(heights) - 0.16 * span, max(heights) + 0.08 * span
    figure.update_layout(yaxis={"range": [low, high], "zeroline": False})


def _add_unscored(figure: go.Figure, study: StudyFacts, x_of: Any, name: str | None = None) -> None:
    """Marks at the foot of the axes, on a scale of their own: they have no objective."""
    for state, words in palette.STATE_NAMES.items():
        some = [t for t in study.trials if t.state == state and (name is None or name in t.params)]
        if some:
            figure.add_scatter(
                x=[x_of(trial) for trial in some],
                y=[0.04] * len(some),
                yaxis="y2",
                mode="markers",
                name=f"{words} (no objective)",
                marker={"symbol": _SYMBOLS[state], "size": 8, "color": palette.TRIAL, "line": {"width": 2}},
                text=[_hover(study, trial) for trial in some],
                hovertemplate="%{text}<extra></extra>",
            )
    figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})


def _hover(study: StudyFacts, trial: TrialFacts) -> str:
    lines = [f"<b>trial {trial.number}</b> ({trial.state.lower()})"]
    lines += [f"{key} = {parameter(value)}" for key, value in trial.params.items()]
    if trial.is_scored:
        names = (study.objective, study.judged("ttft_s"), study.judged("tpot_s"), "output_tokens_per_s")
        lines += [f"{axis_label(name, '')}: {shown(name, trial.value(name))}" for name in dict.fromkeys(names)]
    if trial.is_coarse:
        lines.append(COARSE)
    if trial.missed:
        lines.append(f"misses {', '.join(trial.missed)}")
    if trial.reason:
        text = " ".join(trial.reason.split())
        lines.append(text[:77] + "…" if len(text) > 78 else text)
    return "<br>".join(line.replace("<script", "") for line in lines)
