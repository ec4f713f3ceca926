"""Records of several engines as one, as if one front door had seen everything."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from workbench.loadgen.fleet.replica import Replica
from workbench.metrics.records import PartialRun, RequestTable, RunRecord, StepTable


def joined_partial(parts: Sequence[PartialRun], now_s: float) -> PartialRun:
    """What is known of all replicas, in order of replicas."""
    values: dict[str, Any] = {
        "now_s": now_s, "num_requests": parts[0].num_requests, "class_names": parts[0].class_names
    }  # fmt: skip
    for field in fields(PartialRun):
        if field.name not in values:
            values[field.name] = np.concatenate([getattr(part, field.name) for part in parts])
    return PartialRun(**values)


def joined_requests(tables: Sequence[RequestTable]) -> RequestTable:
    """All rows in order of arrival; equals keep the order of the tables."""
    order = np.argsort(np.concatenate([table.arrival_s for table in tables]), kind="stable")
    place = np.argsort(order, kind="stable")
    base = np.cumsum([0, *(len(table) for table in tables)])
    counts = np.concatenate([np.diff(table.token_offsets) for table in tables])
    starts = np.concatenate(
        [table.token_offsets[:-1] + shift for table, shift in zip(tables, _token_bases(tables), strict=True)]
    )
    offsets = np.concatenate([[0], np.cumsum(counts[order])]).astype(np.int64)
    picks = np.arange(offsets[-1]) + np.repeat(starts[order] - offsets[:-1], counts[order])
    ids = [name for table in tables for name in table.request_ids]
    values: dict[str, Any] = {
        "request_ids": tuple(ids[i] for i in order.tolist()),
        "class_names": tables[0].class_names,
        "token_times_s": np.concatenate([table.token_times_s for table in tables])[picks],
        "token_offsets": offsets,
        "errors": {
            int(place[base[k] + row]): text for k, table in enumerate(tables) for row, text in table.errors.items()
        },
    }
    for field in fields(RequestTable):
        if field.name not in values:
            values[field.name] = np.concatenate([getattr(table, field.name) for table in tables])[order]
    return RequestTable(**values)


def joined_steps(tables: Sequence[StepTable]) -> StepTable:
    """All steps in order of their begin. Steps of different replicas overlap."""
    order = np.argsort(np.concatenate([table.start_s for table in tables]), kind="stable")
    stops = [stop for table in tables for stop in table.admission_stop]
    numbers = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    values: dict[str, Any] = {
        "admission_stop": tuple(stops[i] for i in order.tolist()), "replica": numbers[order]
    }  # fmt: skip
    for field in fields(StepTable):
        if field.name not in values:
            values[field.name] = np.concatenate([getattr(table, field.name) for table in tables])[order]
    return StepTable(**values)


def joined_record(replicas: Sequence[Replica], records: Sequence[RunRecord], engine: Mapping[str, Any]) -> RunRecord:
    """One record; `records` are those of the replicas and of the front door, in that order."""
    requests = joined_requests([record.requests for record in records])
    lookups = [replica.simulation.core.scheduler.prefix_cache_stats() for replica in replicas]
    prints = "".join(replica.simulation.core.scheduler.fingerprint.hexdigest() for replica in replicas)
    ends = [record.requests.arrival_s[0] + record.duration_s for record in records if len(record.requests)]
    return RunRecord(
        requests=requests,
        steps=joined_steps([record.steps for record in records]),
        duration_s=float(max(ends) - requests.arrival_s[0]) if ends else 0.0,
        clock="virtual",
        engine=engine,
        prefix_queried_tokens=sum(each.queried_tokens for each in lookups),
        prefix_hit_tokens=sum(each.hit_tokens for each in lookups),
        decision_fingerprint=hashlib.sha256(prints.encode()).hexdigest(),
    )


def _token_bases(tables: Sequence[RequestTable]) -> list[int]:
    return [0, *np.cumsum([len(table.token_times_s) for table in tables]).tolist()][: len(tables)]
