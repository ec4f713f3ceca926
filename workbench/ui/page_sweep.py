"""Sweep page: one study, live while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pandas as pd
import streamlit as st

from workbench.metrics.summary import LATENCY_METRICS
from workbench.report.comparison import class_table, limit_table, metric_table, parameter_table, repeat_table
from workbench.report.document import Code, to_markdown
from workbench.report.facts import StudyFacts
from workbench.report.quantities import label, signed_share, unit, value_of
from workbench.report.search_sections import front_blocks, pair_in_words, prediction_blocks, rate_blocks
from workbench.report.sections import disagreement, winner_blocks
from workbench.services import browse
from workbench.services.browse import StoreError
from workbench.ui.blocks import TILE_WIDTH, plain, show_binding, show_hint, show_section, show_table, tile
from workbench.ui.store import pick, store_path, study_of
from workbench.ui.trial_charts import effect_chart, objective_chart, pair_chart, tradeoff_chart

REFRESH_S = 2.0
"""How often a study that is not finished is looked at again."""
_EFFECT_COLUMNS = 2
_ROW_PX = 35
_MAX_ROWS = 24
"""Trials shown without scrolling."""


def page() -> None:
    """The whole page."""
    st.title("Sweeps")
    store = store_path()
    entries = browse.studies(store)
    if not entries:
        show_hint(
            f"There is no sweep in {store} yet. Run one, then reload this page:",
            ["workbench sweep scenarios/quickstart.yaml", "workbench sweep scenarios/quickstart.yaml --trials 8"],
        )
        return
    entry = pick("Study", entries, "study")
    if entry is None:
        return
    is_open = not browse.is_finished(entry.directory)
    st.fragment(_study, run_every=REFRESH_S if is_open else None)(entry.directory, is_open)


def _study(directory: Path, is_open: bool) -> None:
    if is_open and browse.is_finished(directory):
        st.rerun()  # the last trial has ended: draw once more, without the timer
    try:
        study = study_of(directory)
    except StoreError as error:
        st.error(plain(str(error)))
        return
    _conclusion(study, directory, is_open)
    if not is_open:
        for block in winner_blocks(study):
            if isinstance(block, Code):
                st.code(block.text, language="bash", wrap_lines=True)
            else:
                st.markdown(plain(to_markdown([block])))
    _tiles(study)
    _charts(study)
    _trials(study)
    _details(study)
    report = directory / browse.REPORT_FILE
    if not is_open and report.is_file():
        st.download_button("Download the report (HTML)", report.read_bytes(), f"{study.name}.html", "text/html")


def _conclusion(study: StudyFacts, directory: Path, is_open: bool) -> None:
    if study.basis:
        st.caption(plain(study.basis))
    if is_open:
        asked = browse.num_trials_asked(study)
        of = f" of {asked}" if asked else ""
        st.info(
            f"Not finished: {len(study.trials)}{of} trials so far. This page follows along. If the sweep was "
            "interrupted, the same command with `--resume` goes on.",
            icon=":material/hourglass_top:",
        )
    show = st.success if study.gain is not None and study.gain.is_significant else st.info
    if not is_open or study.stopped:
        show(plain(study.conclusion), icon=":material/flag:")
    if study.stopped:
        st.warning(plain(f"Ended early: {study.stopped}"))
    warning = disagreement(study)
    if warning:
        st.warning(plain(warning))
    for problem in study.problems:
        st.warning(plain(problem))
    if study.description:
        st.caption(plain(study.description))


def _tiles(study: StudyFacts) -> None:
    """The rival's main figures, with their difference to the default."""
    if study.rival is None and study.default is None:
        return
    name, trial = study.compared[-1]
    names = dict.fromkeys(
        [study.objective, "slo_attainment", "output_tokens_per_s", study.judged("ttft_s"), study.judged("tpot_s")]
    )
    st.subheader(name[0].upper() + name[1:])
    has_gain = study.gain is not None and len(study.compared) == 2
    tiles = st.container(horizontal=True)
    for figure in names:
        before = None if study.default is None else study.default.value(figure)
        after = trial.value(figure)
        delta = None
        if len(study.compared) == 2 and before and after is not None:
            is_share = unit(figure) == "%"
            delta = f"{(after - before) * 100:+.1f} points" if is_share else signed_share(after / before - 1)
        is_latency = figure.partition(".")[0] in LATENCY_METRICS
        color: Literal["inverse", "normal"] = "inverse" if is_latency else "normal"
        tiles.metric(*tile(figure, after), delta, delta_color=color, border=True, width=TILE_WIDTH)
    if has_gain and study.gain is not None:
        gain = study.gain
        text = f"{signed_share(gain.low)} to {signed_share(gain.high)}"
        value = signed_share(gain.value)
        name = "Predicted gain" if study.is_simulated else "Confirmed gain"
        tiles.metric(name, value, text, delta_color="off", delta_arrow="off", border=True, width=TILE_WIDTH)
    if len(study.compared) == 2:
        st.caption(
            "Differences are to the default configuration, each of one run of the search"
            + ("." if study.is_simulated or not has_gain else "; the confirmed gain rests on repeats of both.")
        )


def _charts(study: StudyFacts) -> None:
    chart = objective_chart(study)
    if chart is None:
        st.info("No trial has a result yet.")
        return
    st.subheader("Objective per trial")
    st.plotly_chart(chart, width="stretch", key="objective")
    st.subheader("Latency against throughput")
    st.caption("Better is lower and further right. Marks are as above; hover over one for its parameters.")
    for column, head in zip(st.columns(2), ("ttft_s", "tpot_s"), strict=True):
        tradeoff = tradeoff_chart(study, study.judged(head))
        if tradeoff is None:
            column.info(f"No trial has a {label(head)}.")
        else:
            column.plotly_chart(tradeoff, width="stretch", key=f"tradeoff-{head}")
    st.subheader("Effect of each parameter")
    st.caption("Other parameters vary too, so read trends, not single points. Marks are as above.")
    names = list(study.space)
    for start in range(0, len(names), _EFFECT_COLUMNS):
        for column, name in zip(st.columns(_EFFECT_COLUMNS), names[start : start + _EFFECT_COLUMNS], strict=False):
            effect = effect_chart(study, name)
            if effect is not None:
                column.plotly_chart(effect, width="stretch", key=f"effect-{name}")
    pair = pair_chart(study)
    if pair is not None:
        st.subheader("Two parameters together")
        st.caption(plain(pair_in_words(study)))
        st.plotly_chart(pair, width="stretch", key="pair")


def _trials(study: StudyFacts) -> None:
    st.subheader("Trials")
    if not study.trials:
        st.info("No trial has ended yet.")
        return
    rows = []
    for trial in study.trials:
        row: dict[str, Any] = {"trial": trial.number, "state": trial.state.lower(), "verdict": trial.verdict or "–"}
        if any(each.is_coarse for each in study.trials):
            row["resolved"] = "coarse" if trial.is_coarse else "–" if trial.objective is None else "yes"
        row["SLO limits missed"] = "–" if not trial.constraints else ", ".join(trial.missed) or "none"
        names = (study.objective, "output_tokens_per_s", study.judged("ttft_s"), study.judged("tpot_s"))
        for name in dict.fromkeys(names):
            value = trial.objective if name == study.objective else value_of(trial.metrics, name)
            factor, what = _factor(name)
            row[f"{label(name)} ({what})"] = None if value is None else value * factor
        row |= {name: trial.params.get(name) for name in study.space}
        row["reason"] = "" if trial.reason is None else " ".join(trial.reason.split())
        rows.append(row)
    frame = pd.DataFrame(rows)
    config = {
        name: st.column_config.NumberColumn(format="%.4g")
        for name in frame.columns
        if name.endswith((")", "utilization"))
    }
    height = _ROW_PX * (min(len(rows), _MAX_ROWS) + 1) + 3
    st.dataframe(frame, width="stretch", height=height, hide_index=True, column_config=config)


def _factor(name: str) -> tuple[float, str]:
    kind = unit(name)
    return (1000.0, "ms") if kind == "s" else (100.0, "%") if kind == "%" else (1.0, kind)


def _details(study: StudyFacts) -> None:
    for section in (rate_blocks, front_blocks, prediction_blocks):
        show_section(section(study))
    columns = study.compared
    if columns:
        with st.expander("Default and best in figures"):
            show_table(parameter_table(study))
            for table in (repeat_table(study), metric_table(study), class_table(study), limit_table(study)):
                if table is not None and table.rows:
                    show_table(table)
    bound = [(name, trial.binding) for name, trial in columns if trial.binding]
    if bound:
        with st.expander("What limited the engine", expanded=True):
            show_binding([(name, found) for name, found in bound if found is not None])
    with st.expander("Parameters that changed nothing", expanded=bool(study.identical)):
        for sentence in study.identical:
            st.text(f"• {sentence}")
        if not study.identical:
            st.text("None: every configuration led to scheduling decisions of its own.")
