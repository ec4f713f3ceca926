"""Figures about single runs: latency distributions and the timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.metrics.records import FloatArray
from workbench.report import canvas, palette
from workbench.report.facts import RunFacts, StudyFacts
from workbench.report.quantities import axis_label, label, limit, scale_of

CDF_METRICS = ("ttft_s", "tpot_s", "e2el_s")
MAX_CLASSES = 6
_MAX_POINTS = 400
_DROPPED = 0.002
"""Share of the slowest samples that may lie outside the axes, so that one straggler does not flatten all curves."""


def draw_cdfs(
    runs: Mapping[str, RunFacts], limits: Mapping[str, tuple[float, float]], colors: Sequence[str]
) -> Figure | None:
    """Latency CDFs, one column per metric, one row for all requests and one per class; a curve per run."""
    groups = list(dict.fromkeys(name for run in runs.values() for name in run.samples))
    groups = groups[: MAX_CLASSES + 1]
    if not any(len(v) for run in runs.values() for samples in run.samples.values() for v in samples.values()):
        return None
    rows = len(groups)
    figure, axes = canvas.new_figure(rows, len(CDF_METRICS), 0.5 + 2.5 * rows, squeeze=False)
    for index, (group, metric) in enumerate((g, m) for g in groups for m in CDF_METRICS):
        what = f"all requests: {label(metric)}" if group == "all" else f"class {group}: {label(metric)}"
        canvas.title(axes[index], what if len(groups) > 1 else label(metric))
        _cdf(axes[index], runs, group, metric, limits, colors)
    with_curves = next((panel for panel in axes if panel.get_lines()), axes[0])
    canvas.legend_above(figure, with_curves)
    return figure


def _cdf(
    panel: Axes,
    runs: Mapping[str, RunFacts],
    group: str,
    metric: str,
    limits: Mapping[str, tuple[float, float]],
    colors: Sequence[str],
) -> None:
    samples = {name: run.samples.get(group, {}).get(metric, np.zeros(0)) for name, run in runs.items()}
    every = np.concatenate([*samples.values()])
    if not len(every):
        canvas.note(panel, "no samples")
        return
    factor, unit = scale_of(metric, every.tolist())
    low, high = np.quantile(every, [0.01, 1 - _DROPPED]) * factor
    if low > 0 and high / low > 30:
        canvas.log_axis(panel, "x", [float(low), float(high)])
    else:
        panel.set_xlim(0, float(high) * 1.05 if high > 0 else 1.0)
        canvas.number_axis(panel.xaxis, 5)
    for (name, values), color, style in zip(samples.items(), colors, _styles(len(runs)), strict=False):
        x, y = cdf_points(values)
        if len(x):
            panel.plot(
                x * factor, y * 100, color=color, linestyle=style, linewidth=1.8, drawstyle="steps-post", label=name
            )
    for written, (limit_s, required) in limits.items():
        inside = panel.get_xlim()[0] <= limit_s * factor <= panel.get_xlim()[1]
        if f"{written.partition('_p')[0]}_s" == metric and inside:
            canvas.name_line(panel, f"SLO {limit(limit_s)}", x=limit_s * factor)
            panel.plot(limit_s * factor, required * 100, marker="D", color=palette.LIMIT, markersize=5, zorder=4)
    panel.set_ylim(0, 102)
    panel.set_xlabel(axis_label(metric, unit))
    panel.set_ylabel("Requests (%)")
    canvas.number_axis(panel.yaxis, 5)


def _styles(count: int) -> tuple[str, ...]:
    """The last curve is the one to look at: solid; what it is compared with is dashed."""
    return ("-",) if count == 1 else ("--", "-")


def cdf_points(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(x, share of samples at most x) of sorted `values`, thinned to what a plot can show."""
    count = len(values)
    if count == 0:
        return np.zeros(0), np.zeros(0)
    ranks = np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).astype(np.int64))
    return np.concatenate([values[:1], values[ranks]]), np.concatenate([[0.0], (ranks + 1) / count])


def draw_timeline(run: RunFacts) -> Figure | None:
    """Queue, batch and KV cache over the run, and the replicas of a fleet that changed; None without steps."""
    line = run.timeline
    if line is None:
        return None
    has_preemptions = bool(line.preemptions.sum())
    heights = [3, 3, 3, *([1.6] if has_preemptions else []), *([1.6] if run.replica_counts else [])]
    num_panels, ratios = len(heights), {"height_ratios": heights}
    figure, axes = canvas.new_figure(num_panels, 1, 2.0 * num_panels + 0.4, sharex=True, gridspec_kw=ratios)
    time = line.time_s
    axes[0].plot(time, line.running, color=palette.BEST, linewidth=1.4, label="running")
    axes[0].plot(time, line.waiting, color=palette.DEFAULT, linewidth=1.4, linestyle="--", label="waiting")
    axes[0].set_ylabel("Requests")
    canvas.title(axes[0], "Requests running and waiting")
    has = np.isfinite(line.tokens_mean)
    mean, largest = line.tokens_mean[has], line.tokens_max[has]
    axes[1].fill_between(time[has], mean, largest, color=palette.BEST, alpha=0.25, linewidth=0, label="largest")
    axes[1].plot(time[has], mean, color=palette.BEST, linewidth=1.4, label="mean")
    axes[1].set_ylabel("Tokens per step")
    canvas.title(axes[1], "Scheduled tokens per step")
    usage = line.blocks_in_use / max(line.num_blocks, 1) * 100
    axes[2].fill_between(time, 0, usage, color=palette.MEMORY, alpha=0.25, linewidth=0)
    axes[2].plot(time, usage, color=palette.MEMORY, linewidth=1.4)
    axes[2].set_ylim(0, 105)
    axes[2].set_ylabel("Blocks in use (%)")
    canvas.title(axes[2], f"KV cache: share of {line.num_blocks:,} blocks in use")
    if has_preemptions:
        axes[3].bar(time, line.preemptions, width=line.span_s, color=palette.DEFAULT)
        axes[3].set_ylabel("Preemptions")
        canvas.title(axes[3], f"Preemptions ({int(line.preemptions.sum()):,} in all)")
        canvas.number_axis(axes[3].yaxis, 3, whole=True)
    if run.replica_counts:
        _replicas(axes[-1], run.replica_counts, float(time[-1] + line.span_s / 2))
    _caps(axes, run)
    for panel in axes[:2]:
        panel.legend(frameon=False, fontsize=9, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    for panel in axes[:3]:
        canvas.number_axis(panel.yaxis, 5)
    for panel in axes[:2]:
        panel.set_ylim(bottom=0)
    start, end = float(time[0] - line.span_s / 2), float(time[-1] + line.span_s / 2)
    for panel in axes:
        _shade_unmeasured(panel, run.window_s, start, end)
    axes[-1].set_xlim(start, end)
    axes[-1].set_xlabel("Time since the start of the run (s); grey: not measured (warm-up, cool-down)")
    if run.window_s[0] <= start and run.window_s[1] >= end:
        axes[-1].set_xlabel("Time since the start of the run (s)")
    return figure


def _replicas(panel: Axes, counts: Sequence[tuple[float, int, int]], end_s: float) -> None:
    """Replicas that take requests, and on top of them those that are being started."""
    times = [when_s for when_s, _, _ in counts] + [max(end_s, counts[-1][0])]
    up = [count for _, count, _ in counts] + [counts[-1][1]]
    ordered = [count + starting for _, count, starting in counts] + [sum(counts[-1][1:])]
    panel.fill_between(times, up, ordered, step="post", color=palette.DEFAULT, alpha=0.25, linewidth=0)
    panel.plot(times, up, color=palette.BEST, linewidth=1.4, drawstyle="steps-post")
    panel.set_ylim(0, max(ordered) + 0.5)
    panel.set_ylabel("Replicas")
    canvas.title(panel, "Replicas that take requests; shaded: being started")
    canvas.number_axis(panel.yaxis, 4, whole=True)


def _caps(axes: Sequence[Axes], run: RunFacts) -> None:
    """The limits that a series comes near to."""
    line = run.timeline
    if line is None or line.num_engines > 1:  # the limits are each engine's
        return
    for panel, values, name in (
        (axes[0], line.running, "max_num_seqs"),
        (axes[1], line.tokens_max, "max_num_batched_tokens"),
    ):
        cap = run.engine.get(name)
        if isinstance(cap, int) and np.isfinite(values).any() and np.nanmax(values) >= 0.6 * cap:
            panel.axhline(cap, color=palette.LIMIT, linewidth=1.2, linestyle=(0, (4, 3)), label=f"{name} = {cap}")
            panel.set_ylim(top=max(panel.get_ylim()[1], cap * 1.12))


def _shade_unmeasured(panel: Axes, window_s: tuple[float, float], start: float, end: float) -> None:
    for low, high in ((start, min(window_s[0], end)), (max(window_s[1], start), end)):
        if high > low:
            panel.axvspan(low, high, color="#9AA0A8", alpha=0.18, linewidth=0)


def study_curves(study: StudyFacts) -> tuple[dict[str, RunFacts], tuple[str, ...]]:
    """The runs of default and rival by their names, and their colours."""
    there = [(name, trial.number) for name, trial in study.compared if trial.number in study.runs]
    colors = tuple(palette.DEFAULT if number == 0 else palette.BEST for _, number in there)
    return {name: study.runs[number] for name, number in there}, colors
