"""From a stored run to facts: samples, timeline, limits kept, what bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.metrics.attainment import SloPolicy, limit_results
from workbench.metrics.binding import binding_of
from workbench.metrics.definitions import PER_REQUEST, BoolArray, is_completed, itl_s
from workbench.metrics.records import FloatArray, IntArray, RequestTable, RunRecord, StepTable
from workbench.metrics.windows import Window, measurement_window
from workbench.report.facts import LimitFacts, RunFacts, Timeline
from workbench.scenario import Scenario

NUM_SPANS = 240
"""Spans of a timeline: about as many as a plot can tell apart."""


def run_facts(name: str, info: Mapping[str, Any], record: RunRecord) -> RunFacts:
    """Facts of one run. `info` holds what `run.json` says, by its field names."""
    window = _window(info, record)
    binding = binding_of(record)
    return RunFacts(
        name=name,
        created_at=info["created_at"],
        scenario=info["scenario"],
        seed=info["seed"],
        params=info["params"],
        engine=record.engine,
        metrics=info["metrics"],
        classes=info["classes"],
        verdict=info["verdict"],
        reasons=tuple(info["reasons"]),
        failure=info["failure"],
        provenance=info["provenance"],
        clock=record.clock,
        duration_s=record.duration_s,
        notes=record.notes,
        binding=None if binding is None else binding.to_dict(),
        limits=_limits(info["scenario"], record.requests, window),
        samples=_samples(record.requests, window),
        timeline=timeline_of(record.steps),
        window_s=(window.start_s, window.end_s),
        num_recomputed_tokens=None if binding is None else binding.recomputed_tokens,
        replica_counts=_replica_counts(record),
        replicas=() if record.fleet is None else tuple(record.fleet["replicas"]),
    )


def _window(info: Mapping[str, Any], record: RunRecord) -> Window:
    stored = info.get("window_s")
    if stored is not None:
        return Window(start_s=float(stored[0]), end_s=float(stored[1]))
    measurement = info["scenario"].get("measurement") or {}
    try:
        return measurement_window(
            record, warm_up_s=measurement.get("warm_up") or 0.0, cool_down_s=measurement.get("cool_down") or 0.0
        )
    except ValueError:  # nothing is left of it: show the whole run
        return measurement_window(record)


def _samples(table: RequestTable, window: Window) -> dict[str, dict[str, FloatArray]]:
    done = is_completed(table) & window.holds_requests(table)
    figures = {name: figure(table) for name, figure in PER_REQUEST.items()}
    groups: dict[str, BoolArray] = {"all": done}
    if len(table.class_names) > 1:
        groups |= {name: done & (table.class_index == number) for number, name in enumerate(table.class_names)}
    found = {}
    for name, rows in groups.items():
        values = {metric: column[rows] for metric, column in figures.items()}
        values["itl_s"] = itl_s(table, rows)
        found[name] = {metric: np.sort(column[np.isfinite(column)]) for metric, column in values.items()}
    return found


def _limits(scenario: Mapping[str, Any], table: RequestTable, window: Window) -> tuple[LimitFacts, ...]:
    try:
        policy = SloPolicy.from_scenario(Scenario.model_validate(scenario))
    except ValueError:  # written by another version: its limits cannot be judged again
        return ()
    rows = window.holds_requests(table)
    groups: dict[int, list[int]] = {}
    for number, name in enumerate(table.class_names):
        groups.setdefault(id(policy.of_class(name)), []).append(number)
    found = []
    for numbers in groups.values():
        slo = policy.of_class(table.class_names[numbers[0]])
        alone = SloPolicy(default=slo)
        together = limit_results(table, alone, rows & np.isin(table.class_index, numbers))
        apart = {
            table.class_names[number]: limit_results(table, alone, rows & (table.class_index == number))
            for number in (numbers if len(numbers) > 1 else ())
        }
        found += [
            LimitFacts(
                name=result.limit.name,
                classes=tuple(table.class_names[number] for number in numbers) if len(groups) > 1 else (),
                limit_s=result.limit.limit_s,
                required=result.required_fraction,
                achieved=result.fraction,
                by_class={name: results[index].fraction for name, results in apart.items()},
            )
            for index, result in enumerate(together)
        ]
    return tuple(found)


def _replica_counts(record: RunRecord) -> tuple[tuple[float, int, int], ...]:
    counts = () if record.fleet is None else record.fleet["counts"]
    return tuple((float(when_s), int(up), int(starting)) for when_s, up, starting in counts) if len(counts) > 1 else ()


def timeline_of(steps: StepTable, num_spans: int = NUM_SPANS) -> Timeline | None:
    """Steps gathered into equal spans, those of all engines of a fleet together; None where there are no steps (a
    foreign endpoint)."""
    if not len(steps):
        return None
    start, end = float(steps.start_s[0]), float(steps.end_s.max())
    num_spans = max(1, min(num_spans, len(steps)))
    width = max(end - start, 1e-9) / num_spans
    index = _spans(steps, start, width, num_spans)
    engines = list(steps.by_replica())
    states = np.zeros((3, num_spans))
    for each in engines:
        states += _states(each, start, width, num_spans)
    running, waiting, blocks = states
    counts = np.bincount(index, minlength=num_spans)
    tokens = np.bincount(index, weights=steps.num_scheduled_tokens, minlength=num_spans)
    preemptions = np.bincount(index, weights=steps.num_preempted, minlength=num_spans)
    return Timeline(
        time_s=np.asarray(start + (np.arange(num_spans) + 0.5) * width, dtype=np.float64),
        span_s=width,
        running=running,
        waiting=waiting,
        tokens_mean=np.where(counts > 0, tokens / np.maximum(counts, 1), np.nan),
        tokens_max=_most(index, steps.num_scheduled_tokens, num_spans),
        blocks_in_use=blocks,
        preemptions=preemptions.astype(np.int64),
        num_blocks=sum(int((each.num_blocks_in_use + each.num_free_blocks).max()) for each in engines),
        num_steps=len(steps),
        num_engines=len(engines),
    )


def _spans(steps: StepTable, start_s: float, width_s: float, num_spans: int) -> IntArray:
    """[steps] the span in which each began."""
    return np.clip(((steps.start_s - start_s) / width_s).astype(np.int64), 0, num_spans - 1)


def _states(steps: StepTable, start_s: float, width_s: float, num_spans: int) -> FloatArray:
    """[3, num_spans] most running, waiting and blocks in use of one engine.

    A span without a step shows the state of the step that is still in progress (it may outlast a span); nothing is
    there where none is.
    """
    index = _spans(steps, start_s, width_s, num_spans)
    ends_s = _held(_most(index, steps.end_s, num_spans))
    is_there = ends_s > start_s + np.arange(num_spans) * width_s
    columns = (steps.num_running, steps.num_waiting, steps.num_blocks_in_use)
    return np.array([np.where(is_there, _held(_most(index, column, num_spans)), 0.0) for column in columns])


def _most(index: IntArray, values: IntArray | FloatArray, num_spans: int) -> FloatArray:
    """[num_spans] largest value per span, nan where there is none."""
    most = np.full(num_spans, -np.inf)
    np.maximum.at(most, index, values.astype(np.float64))
    return np.where(np.isfinite(most), most, np.nan)


def _held(values: FloatArray) -> FloatArray:
    """[num_spans] spans without a step have the value of the last one with a step."""
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), 0))
    return np.asarray(values[last], dtype=np.float64)
