"""Run page: one run, whether it stands alone or is a trial of a study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from workbench.metrics.statistics import min_samples
from workbench.metrics.summary import LATENCY_METRICS, SCALAR_METRICS
from workbench.report.comparison import TOO_FEW
from workbench.report.document import Cell, Table
from workbench.report.facts import RunFacts
from workbench.report.quantities import (
    label,
    num_samples,
    number,
    parameter,
    parameter_label,
    share,
    shown,
    value_of,
)
from workbench.report.run_plots import CDF_METRICS
from workbench.report.sections import limit_line, provenance_rows
from workbench.services import browse
from workbench.services.browse import StoreError
from workbench.services.export import serve_line
from workbench.ui.blocks import TILE_WIDTH, plain, show_binding, show_hint, show_table, show_verdict, tile
from workbench.ui.run_charts import cdf_chart, timeline_chart
from workbench.ui.store import pick, run_of, store_path

_TILES = ("goodput_rps", "slo_attainment", "output_tokens_per_s", "ttft_s.p95", "tpot_s.p95", "kv_usage_max")
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


def page() -> None:
    """The whole page."""
    st.title("Runs")
    store = store_path()
    entries = browse.runs(store)
    if not entries:
        show_hint(
            f"There is no run in {store} yet. Make one, then reload this page:",
            ["workbench run scenarios/quickstart.yaml", "workbench sweep scenarios/quickstart.yaml"],
        )
        return
    entry = pick("Run", entries, "run")
    if entry is None:
        return
    try:
        run = run_of(entry.directory)
    except StoreError as error:
        st.error(plain(str(error)))
        return
    _show(run)


def _show(run: RunFacts) -> None:
    st.caption(plain(run.basis.sentence))
    st.caption(plain(f"{run.scenario.get('name', run.name)}, {run.created_at}, {run.clock} clock, seed {run.seed}"))
    show_verdict(run.verdict, run.reasons)
    command = serve_line(run.scenario, run.params, run.engine)
    commands = [f"workbench export {run.name} --format vllm-args"]
    st.code("\n".join([command, *commands] if command else commands), language="bash", wrap_lines=True)
    for limit in run.limits:
        st.text(f"{'Keeps' if limit.is_met else 'Misses'} {limit_line(limit)}")
    if run.failure:
        st.error(plain(f"The run broke: {run.failure}"))
    for note in run.notes:
        st.text(f"• {note}")
    tiles = st.container(horizontal=True)
    for name in _TILES:
        tiles.metric(*tile(name, value_of(run.metrics, name)), border=True, width=TILE_WIDTH)
    st.subheader("What limited the engine")
    if run.binding is None:
        st.text("Unknown: an endpoint does not show its steps.")
    else:
        show_binding([("this run", run.binding)])
    if run.replicas:
        st.subheader("Replicas")
        show_table(_replicas(run))
    st.subheader("Latency distributions")
    panels = [(metric, cdf_chart(run, metric)) for metric in (*CDF_METRICS, "queue_s")]
    columns = [*st.columns(2), *st.columns(2)]
    for column, (metric, chart) in zip(columns, panels, strict=True):
        if chart is None:
            column.info(f"No completed request has a {label(metric)}.")
        else:
            column.plotly_chart(chart, width="stretch", key=f"cdf-{metric}")
    st.subheader("Queue and KV cache over time")
    timeline = timeline_chart(run)
    if timeline is None:
        st.info("This run has no steps to show: an endpoint does not reveal them.")
    else:
        st.plotly_chart(timeline, width="stretch", key="timeline")
    st.subheader("Figures")
    show_table(_latencies(run))
    st.caption(
        "Latencies describe completed requests from their intended arrival, within the measured window. "
        f"{TOO_FEW} rests on too few samples for this percentile."
    )
    show_table(_totals(run))
    with st.expander("Configuration and provenance"):
        show_table(_configuration(run))


def _columns(run: RunFacts) -> dict[str, Mapping[str, Any] | None]:
    """Figures of all requests, and of each class where there are several."""
    return {"all": run.metrics, **(run.classes if len(run.classes) > 1 else {})}


def _replicas(run: RunFacts) -> Table:
    rows: list[list[Cell | str]] = [
        [
            each["name"],
            each["role"] or "both",
            number(each["num_requests"]),
            number(each["num_output_tokens"]),
            share(each["busy"]),
            share(each["prefix_hit_rate"]),
            number(each["num_preemptions"]),
            shown("rented_s", each["rented_s"]),
        ]
        for each in run.replicas
    ]
    header = ["Replica", "Role", "Requests", "Output tokens", "Busy", "Prefix hits", "Preemptions", "Rented"]
    return Table(header=header, rows=rows, left=frozenset({0, 1}))


def _totals(run: RunFacts) -> Table:
    columns = _columns(run)
    rows: list[list[Cell | str]] = [
        [label(name), *(shown(name, value_of(metrics, name)) for metrics in columns.values())]
        for name in SCALAR_METRICS
    ]
    return Table(header=["Figure", *columns], rows=rows)


def _latencies(run: RunFacts) -> Table:
    rows: list[list[Cell | str]] = []
    for head in LATENCY_METRICS:
        for index, (group, metrics) in enumerate(_columns(run).items()):
            names = [f"{head}.{statistic}" for statistic in _STATISTICS]
            cells = [shown(name, value_of(metrics, name)) + _flag(metrics, name) for name in names]
            rows.append([label(head) if index == 0 else "", group, *cells, number(num_samples(metrics, head))])
    return Table(header=["Latency", "Requests", *_STATISTICS, "samples"], rows=rows, left=frozenset({0, 1}))


def _flag(metrics: object, name: str) -> str:
    statistic, count = name.partition(".")[2], num_samples(metrics, name)
    is_percentile = statistic.startswith("p") and count is not None
    return f" {TOO_FEW}" if is_percentile and 0 < (count or 0) < min_samples(float(statistic[1:])) else ""


def _configuration(run: RunFacts) -> Table:
    reasons = run.engine.get("reasons") or {}
    rows: list[list[Cell | str]] = []
    for name, value in run.engine.items():
        if name == "reasons":
            continue
        origin = "searched" if name in run.params else str(reasons.get(name, ""))
        rows.append([parameter_label(name), parameter(value), origin])
    rows += [[what, value, ""] for what, value in provenance_rows(run.provenance)]
    return Table(header=["What", "Value", "Why"], rows=rows, left=frozenset({0, 1, 2}))
