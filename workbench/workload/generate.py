"""Spec + seed -> workload."""

from __future__ import annotations

import numpy as np

from workbench.scenario.arrivals import ClosedLoop, TraceArrivals
from workbench.scenario.errors import ScenarioError
from workbench.scenario.lengths import shortest
from workbench.scenario.schema import RequestClass, Scenario, WorkloadSpec
from workbench.workload.arrivals import draw_arrivals
from workbench.workload.columns import Columns, ColumnsBuilder
from workbench.workload.prompt_sources import prompts_of
from workbench.workload.prompts import PromptSource, RandomPrompts
from workbench.workload.randomness import stream
from workbench.workload.records import ClosedLoopPacing, ModelLimits, TurnPacing, Workload, WorkloadSummary
from workbench.workload.summary import fingerprint, summarize_workload
from workbench.workload.traces import ImportReport, TraceTable, import_requests, import_trace

TRACE_CLASS = "trace"
"""Class name of a trace's rows when the workload has no classes."""


def generate_workload(
    scenario: Scenario, limits: ModelLimits, *, seed: int | None = None, prompt_seed: int | None = None
) -> Workload:
    """The scenario's requests; `seed` replaces the scenario's, `prompt_seed` only that of the prompts' content.

    A server that keeps its prefix cache between runs needs a fresh `prompt_seed` for each of them, at equal arrivals
    and lengths.

    Equal arguments give equal workloads in every process. Raises `ScenarioError` for requests that cannot fit the
    model and for trace files that cannot be used.
    """
    spec = scenario.workload
    seed = scenario.seed if seed is None else seed
    classes = sorted(spec.classes, key=lambda kind: kind.name)
    files = {kind.name: _file_of(kind) for kind in classes if kind.file is not None}
    tables = {name: table for name, (table, _) in files.items()}
    over_long = spec.over_long or ("drop" if files or isinstance(spec.arrivals, TraceArrivals) else "fail")
    if over_long != "clip":
        check_fit(classes, limits.max_model_len)
    builder = ColumnsBuilder(
        seed=seed, classes=classes, max_model_len=limits.max_model_len, over_long=over_long, files=tables
    )
    own_s = {
        kind.name: draw_arrivals(kind.arrivals, kind.count, spec.duration, stream(seed, "arrivals", kind.name))
        for kind in classes
        if kind.arrivals is not None
    }
    report: ImportReport | None = None
    if isinstance(spec.arrivals, TraceArrivals):
        table, report = import_trace(
            spec.arrivals,
            max_model_len=None if classes else limits.max_model_len,
            over_long=over_long,
            num_requests=spec.num_requests,
            duration_s=spec.duration,
        )
        if classes:
            columns = builder.from_classes(table.arrival_s, own_s)
        else:
            columns, tables = builder.from_trace(TRACE_CLASS, table), {TRACE_CLASS: table}
    else:
        common_s = None
        if spec.arrivals is not None:
            common_s = draw_arrivals(spec.arrivals, spec.num_common, spec.duration, stream(seed, "arrivals"))
        columns = builder.from_classes(common_s, own_s)
    if len(columns.arrival_s) == 0:
        raise ScenarioError("workload: gives no requests. Raise num_requests, duration or rate")
    prompts = prompts_of(prompt_seed if prompt_seed is not None else seed, limits, columns, tables)
    reports = {name: account for name, (_, account) in files.items()}
    summary = summarize_workload(spec, columns, over_long, report, reports, limits.max_model_len)
    return _workload(spec, seed, columns, prompts, summary)


def _file_of(kind: RequestClass) -> tuple[TraceTable, ImportReport]:
    """A class's file; its conversations in one piece where they are replayed as such."""
    assert kind.file is not None
    table, report = import_requests(kind.file)
    if kind.conversation is not None and table.session_index is not None:
        table = table.take(np.argsort(table.session_index, kind="stable"))
    return table, report


def check_fit(classes: list[RequestClass], max_model_len: int | None) -> None:
    """Raise `ScenarioError` for a class whose shortest request is over the model's window."""
    if max_model_len is None:
        return
    problems = []
    for kind in classes:
        if kind.input_tokens is None or kind.output_tokens is None:
            continue  # a file, whose rows are looked at one by one
        prompt, output = kind.prefix_tokens + shortest(kind.input_tokens), shortest(kind.output_tokens)
        if prompt + output > max_model_len:
            what = "prompt longer than" if prompt >= max_model_len else "prompt + output longer than"
            problems.append(
                f"workload.classes: class {kind.name!r}: {what} max_model_len (got at least {prompt} prompt + {output} "
                f"output tokens > {max_model_len}). Shorten it or raise engine.max_model_len"
            )
    if problems:
        raise ScenarioError(*problems)


def _workload(
    spec: WorkloadSpec, seed: int, columns: Columns, prompts: PromptSource, summary: WorkloadSummary
) -> Workload:
    closed = spec.arrivals if isinstance(spec.arrivals, ClosedLoop) else None
    pacing = (
        None if closed is None else ClosedLoopPacing(concurrency=closed.concurrency, think_time_s=closed.think_time)
    )
    return Workload(
        request_ids=_request_ids(columns, spec),
        class_names=columns.class_names,
        class_index=columns.class_index,
        arrival_s=columns.arrival_s,
        num_prompt_tokens=columns.num_prompt_tokens,
        max_output_tokens=columns.max_output_tokens,
        priority=columns.priority,
        session_index=columns.session_index,
        turn=columns.turn,
        prompts=prompts,
        closed_loop=pacing,
        max_concurrency=spec.max_concurrency,
        declares_sharing=_declares_sharing(columns, prompts),
        seed=seed,
        fingerprint=fingerprint(columns, prompts, pacing, spec.max_concurrency),
        summary=summary,
        turn_pacing=_turn_pacing(columns, spec),
    )


def _request_ids(columns: Columns, spec: WorkloadSpec) -> tuple[str, ...]:
    """`class-k`, or `class-k.turn` in conversations."""
    names = columns.class_names
    talking = {kind.name for kind in spec.classes if kind.conversation is not None}
    return tuple(
        f"{names[kind]}-{index}.{turn}" if names[kind] in talking else f"{names[kind]}-{index}"
        for kind, index, turn in zip(
            columns.class_index.tolist(), columns.index_in_class.tolist(), columns.turn.tolist(), strict=True
        )
    )


def _turn_pacing(columns: Columns, spec: WorkloadSpec) -> TurnPacing | None:
    """Recorded times stand; only the turns of generated conversations wait."""
    if not any(kind.conversation is not None for kind in spec.classes) or not columns.turn.any():
        return None
    previous = np.full(len(columns.turn), -1, dtype=np.int64)
    order = np.lexsort((columns.turn, columns.session_index))
    follows = np.diff(columns.session_index[order]) == 0
    follows &= columns.session_index[order][1:] >= 0
    previous[order[1:][follows]] = order[:-1][follows]
    return TurnPacing(previous_row=previous, think_time_s=columns.think_time_s)


def _declares_sharing(columns: Columns, prompts: PromptSource) -> bool:
    has_front_prefix = bool(((columns.num_prefix_tokens > 0) & (columns.num_header_tokens == 0)).any())
    return has_front_prefix or bool(columns.turn.any()) or not isinstance(prompts, RandomPrompts)
