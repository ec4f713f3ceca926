"""Spec + seed -> workload."""

from __future__ import annotations

import numpy as np

from workbench.scenario.arrivals import ClosedLoop, TraceArrivals
from workbench.scenario.errors import ScenarioError
from workbench.scenario.lengths import shortest
from workbench.scenario.schema import RequestClass, Scenario, WorkloadSpec
from workbench.workload.arrivals import draw_arrivals
from workbench.workload.columns import Columns, ColumnsBuilder
from workbench.workload.prompts import HashedPrompts, PromptSource, RandomPrompts, Vocabulary
from workbench.workload.randomness import stream
from workbench.workload.records import ClosedLoopPacing, ModelLimits, Workload
from workbench.workload.summary import fingerprint, summarize_workload
from workbench.workload.traces import ImportReport, TraceTable, import_trace

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
    over_long = spec.over_long or ("drop" if isinstance(spec.arrivals, TraceArrivals) else "fail")
    classes = sorted(spec.classes, key=lambda kind: kind.name)
    check_fit(classes, limits.max_model_len)
    builder = ColumnsBuilder(seed=seed, classes=classes, max_model_len=limits.max_model_len, over_long=over_long)
    table: TraceTable | None = None
    report: ImportReport | None = None
    if isinstance(spec.arrivals, TraceArrivals):
        own_lengths = not classes
        table, report = import_trace(
            spec.arrivals,
            max_model_len=limits.max_model_len if own_lengths else None,
            over_long=over_long,
            num_requests=spec.num_requests,
            duration_s=spec.duration,
        )
        columns = builder.from_trace(TRACE_CLASS, table) if own_lengths else builder.from_classes(table.arrival_s)
    else:
        arrivals = draw_arrivals(spec.arrivals, _num_requests(spec), spec.duration, stream(seed, "arrivals"))
        columns = builder.from_classes(arrivals)
    if len(columns.arrival_s) == 0:
        raise ScenarioError("workload: gives no requests. Raise num_requests, duration or rate")
    prompts = _prompts(prompt_seed if prompt_seed is not None else seed, limits, columns, None if classes else table)
    return _workload(spec, seed, columns, prompts, over_long, report)


def check_fit(classes: list[RequestClass], max_model_len: int | None) -> None:
    """Raise `ScenarioError` for a class whose shortest request is over the model's window."""
    if max_model_len is None:
        return
    problems = []
    for kind in classes:
        prefix = kind.shared_prefix.tokens if kind.shared_prefix else 0
        prompt, output = prefix + shortest(kind.input_tokens), shortest(kind.output_tokens)
        if prompt + output > max_model_len:
            what = "prompt longer than" if prompt >= max_model_len else "prompt + output longer than"
            problems.append(
                f"workload.classes: class {kind.name!r}: {what} max_model_len (got at least {prompt} prompt + {output} "
                f"output tokens > {max_model_len}). Shorten it or raise engine.max_model_len"
            )
    if problems:
        raise ScenarioError(*problems)


def _num_requests(spec: WorkloadSpec) -> int | None:
    if spec.classes and spec.classes[0].count is not None:
        return sum(kind.count or 0 for kind in spec.classes)
    return spec.num_requests


def _prompts(seed: int, limits: ModelLimits, columns: Columns, table: TraceTable | None) -> PromptSource:
    vocabulary = Vocabulary(size=limits.vocab_size, first_id=limits.first_token_id)
    if table is not None and table.block_ids is not None and len(table.block_ids):
        assert table.block_tokens is not None
        assert table.block_offsets is not None
        return HashedPrompts(
            seed=seed,
            vocabulary=vocabulary,
            block_tokens=table.block_tokens,
            block_ids=table.block_ids,
            block_offsets=table.block_offsets,
            num_prompt_tokens=columns.num_prompt_tokens,
        )
    return RandomPrompts(
        seed=seed,
        vocabulary=vocabulary,
        class_names=columns.class_names,
        class_index=columns.class_index,
        index_in_class=columns.index_in_class,
        num_prompt_tokens=columns.num_prompt_tokens,
        num_prefix_tokens=columns.num_prefix_tokens,
        prefix_group=columns.prefix_group,
    )


def _workload(
    spec: WorkloadSpec,
    seed: int,
    columns: Columns,
    prompts: PromptSource,
    over_long: str,
    report: ImportReport | None,
) -> Workload:
    closed = spec.arrivals if isinstance(spec.arrivals, ClosedLoop) else None
    pacing = (
        None if closed is None else ClosedLoopPacing(concurrency=closed.concurrency, think_time_s=closed.think_time)
    )
    names = columns.class_names
    ids = tuple(
        f"{names[kind]}-{index}"
        for kind, index in zip(columns.class_index.tolist(), columns.index_in_class.tolist(), strict=True)
    )
    alone = np.full(len(ids), -1, dtype=np.int64)
    return Workload(
        request_ids=ids,
        class_names=names,
        class_index=columns.class_index,
        arrival_s=columns.arrival_s,
        num_prompt_tokens=columns.num_prompt_tokens,
        max_output_tokens=columns.max_output_tokens,
        priority=columns.priority,
        session_index=alone,
        turn=np.zeros(len(ids), dtype=np.int64),
        prompts=prompts,
        closed_loop=pacing,
        max_concurrency=spec.max_concurrency,
        declares_sharing=isinstance(prompts, HashedPrompts) or bool((columns.num_prefix_tokens > 0).any()),
        seed=seed,
        fingerprint=fingerprint(columns, prompts, pacing, spec.max_concurrency),
        summary=summarize_workload(spec, columns, over_long, report),
    )
