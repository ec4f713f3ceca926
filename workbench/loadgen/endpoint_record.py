"""From the worker's results to the run's record, and to the figures about the load itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.step_log import StepLog
from workbench.loadgen.endpoint_plan import RequestResult
from workbench.loadgen.observation import Observation
from workbench.loadgen.token_times import ListedTimes
from workbench.metrics.records import FloatArray, Outcome, RunRecord
from workbench.workload.records import Workload

_NAN = float("nan")


def record_of(
    workload: Workload, results: Sequence[RequestResult], engine: Mapping[str, Any], *, end_s: float
) -> RunRecord:
    """The record of an endpoint run: the client's view only, so no steps, and -1 or nan where only a server knows.

    `engine` gets a key `load` with the rates and the client's lag; `end_s` is the end of observation.
    """
    times = ListedTimes(len(workload))
    seen = Observation(workload, times)
    for result in results:
        row = result.row
        seen.issue(row, result.arrival_s, _NAN if result.sent_s is None else result.sent_s)
        times.set(row, result.token_times_s)
        seen.num_events[row] = result.num_events
        seen.num_cached_tokens[row] = -1 if result.num_cached_tokens is None else result.num_cached_tokens
        seen.num_preemptions[row] = -1
        seen.end(row, result.outcome, result.error)
    load = load_figures(results)
    record = seen.record(StepLog(), start_s=0.0, end_s=end_s, clock="wall", engine={**engine, "load": load})
    queried, hit = _prefix_lookups(results)
    return _with_notes(record, workload, results, load, queried, hit)


def load_figures(results: Sequence[RequestResult]) -> dict[str, Any]:
    """What was asked of the client, what it sent, what came back, and how late it was.

    Rates are in requests/s, (n - 1) / span for those asked and sent, completed / run time; None where n is too small.
    """
    arrivals = np.array([result.arrival_s for result in results], dtype=np.float64)
    sent = np.array([_NAN if result.sent_s is None else result.sent_s for result in results], dtype=np.float64)
    lag = (sent - arrivals)[np.isfinite(sent)]
    ends = [result.token_times_s[-1] for result in results if result.token_times_s]
    num_completed = sum(result.outcome is Outcome.COMPLETED for result in results)
    span_s = max(ends) - float(arrivals.min()) if ends else 0.0
    return {
        "asked_per_s": _rate(arrivals),
        "sent_per_s": _rate(sent[np.isfinite(sent)]),
        "completed_per_s": num_completed / span_s if span_s > 0 else None,
        "client_lag_s": None
        if len(lag) == 0
        else {
            "p50": float(np.percentile(lag, 50)),
            "p99": float(np.percentile(lag, 99)),
            "max": float(lag.max()),
        },
    }


def describe_load(load: Mapping[str, Any]) -> str:
    """The figures as one line."""
    rates = ", ".join(
        f"{name} {'–' if load[f'{name}_per_s'] is None else format(load[f'{name}_per_s'], '.3g')}/s"
        for name in ("asked", "sent", "completed")
    )
    lag = load["client_lag_s"]
    if lag is None:
        return f"load: {rates}; nothing was sent"
    milliseconds = ", ".join(f"{name} {lag[name] * 1e3:.1f} ms" for name in ("p50", "p99", "max"))
    return f"load: {rates}; client lag {milliseconds}"


def _rate(times_s: FloatArray) -> float | None:
    span_s = float(times_s.max() - times_s.min()) if len(times_s) > 1 else 0.0
    return (len(times_s) - 1) / span_s if span_s > 0 else None


def _prefix_lookups(results: Sequence[RequestResult]) -> tuple[int, int]:
    known = [
        (result.num_prompt_tokens, result.num_cached_tokens)
        for result in results
        if result.num_prompt_tokens is not None and result.num_cached_tokens is not None
    ]
    return sum(prompt for prompt, _ in known), sum(cached for _, cached in known)


def _with_notes(
    record: RunRecord,
    workload: Workload,
    results: Sequence[RequestResult],
    load: Mapping[str, Any],
    queried: int,
    hit: int,
) -> RunRecord:
    done = [result for result in results if result.outcome is Outcome.COMPLETED]
    notes = [describe_load(load)]
    num_guessed = sum(not result.is_counted for result in done)
    if num_guessed:
        notes.append(f"{num_guessed} answers came without usage: their tokens are counted as one per event")
    num_packed = sum(result.num_events < len(result.token_times_s) for result in done)
    if num_packed:
        notes.append(
            f"{num_packed} answers had several tokens per event: their token times are those of the events, so itl_s "
            "has gaps of 0 between longer ones"
        )
    num_short = sum(len(result.token_times_s) != workload.max_output_tokens[result.row] for result in done)
    if num_short:
        notes.append(f"{num_short} answers had another length than asked: the server does not honour ignore_eos")
    num_other = sum(
        result.num_prompt_tokens not in (None, int(workload.num_prompt_tokens[result.row])) for result in done
    )
    if num_other:
        notes.append(f"{num_other} prompts had another length for the server than for us: it adds or merges tokens")
    return replace(record, notes=tuple(notes), prefix_queried_tokens=queried, prefix_hit_tokens=hit)
