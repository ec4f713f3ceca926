"""Interactive charts about single runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.report import palette
from workbench.report.facts import RunFacts
from workbench.report.quantities import axis_label, limit, scale_of
from workbench.report.run_plots import cdf_points
from workbench.ui.layout import apply_layout


def cdf_chart(run: RunFacts, metric: str) -> go.Figure | None:
    """Share of completed requests at or below each latency, overall and per class."""
    every = [value for values in run.samples.values() for value in values.get(metric, ()).tolist()]  # type: ignore[union-attr]
    if not every:
        return None
    factor, unit = scale_of(metric, every)
    figure = go.Figure()
    for index, (group, samples) in enumerate(run.samples.items()):
        x, y = cdf_points(samples[metric])
        if not len(x):
            continue
        name = "all requests" if group == "all" else group
        figure.add_scatter(
            x=x * factor,
            y=y * 100,
            mode="lines",
            name=f"{name} ({len(samples[metric]):,})",
            line={
                "shape": "hv",
                "color": palette.SERIES[index % len(palette.SERIES)],
                "width": 2.4 if group == "all" else 1.6,
                "dash": "solid" if group == "all" else ("dash", "dot", "dashdot")[index % 3],
            },
            hovertemplate=f"{name}: %{{y:.1f}} % within %{{x:.4~g}} {unit}<extra></extra>",
        )
    low, high = np.quantile(every, [0.01, 0.998]) * factor
    if low > 0 and high / low > 30:
        figure.update_xaxes(
            type="log", range=[np.log10(low) - 0.05, np.log10(high) + 0.05], dtick="D2" if high / low < 300 else 1
        )
    elif high > 0:
        figure.update_xaxes(range=[0, high * 1.05])
    for one in run.limits:
        if f"{one.name.partition('_p')[0]}_s" == metric:
            _mark_limit(figure, one.limit_s * factor, f"SLO {limit(one.limit_s)}")
    figure.update_xaxes(title=axis_label(metric, unit))
    figure.update_yaxes(title="Requests (%)", range=[0, 102])
    return apply_layout(figure, height=360)


def _mark_limit(figure: go.Figure, x: float, text: str) -> None:
    figure.add_vline(x=x, line={"color": palette.LIMIT, "dash": "dash", "width": 1.2})
    is_log = figure.layout.xaxis.type == "log"
    place = {"x": float(np.log10(x)) if is_log else x, "y": 2, "xanchor": "left", "yanchor": "bottom"}
    figure.add_annotation(text=text, showarrow=False, font={"color": palette.LIMIT}, **place)


def timeline_chart(run: RunFacts) -> go.Figure | None:
    """Queue and batch, tokens per step, KV cache and preemptions over the run."""
    line = run.timeline
    if line is None:
        return None
    rows: Mapping[str, str] = {
        "queue": "Requests",
        "tokens": "Tokens per step",
        "kv": "KV blocks in use (%)",
        "preemptions": "Preemptions",
        "replicas": "Replicas up",
    }
    names = list(rows)[: 4 if line.preemptions.sum() else 3] + (["replicas"] if run.replica_counts else [])
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.05)
    time = line.time_s
    has = np.isfinite(line.tokens_mean)
    running = {"color": palette.BEST, "width": 1.6}
    waiting = {"color": palette.DEFAULT, "width": 1.6, "dash": "dash"}
    figure.add_scatter(x=time, y=line.running, name="running", line=running, row=1, col=1)
    figure.add_scatter(x=time, y=line.waiting, name="waiting", line=waiting, row=1, col=1)
    largest = {"color": palette.SERIES[4], "width": 1}
    figure.add_scatter(x=time[has], y=line.tokens_max[has], name="largest step", line=largest, row=2, col=1)
    figure.add_scatter(x=time[has], y=line.tokens_mean[has], name="mean step", line={"color": "#35506B"}, row=2, col=1)
    usage = line.blocks_in_use / max(line.num_blocks, 1) * 100
    blocks = {"color": palette.MEMORY, "width": 1.6}
    kv_name = f"KV usage of {line.num_blocks:,} blocks"
    figure.add_scatter(x=time, y=usage, name=kv_name, line=blocks, fill="tozeroy", row=3, col=1)
    if "preemptions" in names:
        count = int(line.preemptions.sum())
        bars = {"color": palette.SERIES[3]}
        figure.add_bar(x=time, y=line.preemptions, name=f"preemptions ({count:,})", marker=bars, row=4, col=1)
    if run.replica_counts:
        times = [*(when_s for when_s, _, _ in run.replica_counts), float(time[-1])]
        up = [*(count for _, count, _ in run.replica_counts), run.replica_counts[-1][1]]
        shape = {"color": palette.BEST, "width": 1.6, "shape": "hv"}
        figure.add_scatter(x=times, y=up, name="replicas up", line=shape, row=len(names), col=1)
    for number, name in enumerate(names, start=1):
        figure.update_yaxes(title=rows[name], rangemode="tozero", row=number, col=1)
    figure.update_yaxes(range=[0, 105], row=3, col=1)
    start, end = float(time[0] - line.span_s / 2), float(time[-1] + line.span_s / 2)
    for low, high in ((start, min(run.window_s[0], end)), (max(run.window_s[1], start), end)):
        if high > low:
            figure.add_vrect(x0=low, x1=high, fillcolor=palette.TRIAL, opacity=0.18, line_width=0, row="all", col=1)
    figure.update_xaxes(range=[start, end])
    figure.update_xaxes(title="Time since the start of the run (s); grey: not measured", row=len(names), col=1)
    figure.update_layout(hovermode="x unified")
    figure.update_traces(hovertemplate="%{y:.4~g}")
    return apply_layout(figure, height=190 * len(names) + 90)
