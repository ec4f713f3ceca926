"""Records of several engines as one: what the clients saw, and the steps of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from engine.step_log import StepLog
from workbench.loadgen.fleet.facts import fleet_facts
from workbench.loadgen.fleet.loop import FleetRun
from workbench.loadgen.fleet.notes import fleet_notes
from workbench.loadgen.observation import step_table
from workbench.metrics.records import RunRecord, StepTable


def record_of(run: FleetRun, engine: Mapping[str, Any]) -> RunRecord:
    """What was seen until now."""
    record = run.seen.record(StepLog(), start_s=0.0, end_s=run.latest_s(), clock="virtual", engine=engine)
    engines = [each for place in run.upkeep.places for each in place.engines]
    numbers = [number for number, place in enumerate(run.upkeep.places) for _ in place.engines]
    tables = [step_table(each.run.core.step_stats, each.run.start_s) for each in engines]
    schedulers = [each.simulation.core.scheduler for each in engines]
    # Where the KV of a prompt has been received, nobody looks for it in a cache.
    lookups = [each.prefix_cache_stats() for each, of in zip(schedulers, engines, strict=True) if of.role != "decode"]
    prints = "".join(each.fingerprint.hexdigest() for each in schedulers)
    facts = fleet_facts(run)
    return replace(
        record,
        notes=tuple(fleet_notes(facts, run.spec.routing)),
        steps=joined_steps(tables, numbers),
        prefix_queried_tokens=sum(each.queried_tokens for each in lookups),
        prefix_hit_tokens=sum(each.hit_tokens for each in lookups),
        decision_fingerprint=hashlib.sha256(prints.encode()).hexdigest(),
        stopped=run.stopped,
        fleet=facts,
    )


def joined_steps(tables: Sequence[StepTable], replicas: Sequence[int]) -> StepTable:
    """All steps in order of their begin, each with its table's number. Steps of different replicas overlap."""
    order = np.argsort(np.concatenate([table.start_s for table in tables]), kind="stable")
    stops = [stop for table in tables for stop in table.admission_stop]
    numbers = np.repeat(np.asarray(replicas, dtype=np.int64), [len(table) for table in tables])
    values: dict[str, Any] = {
        "admission_stop": tuple(stops[i] for i in order.tolist()), "replica": numbers[order]
    }  # fmt: skip
    for field in fields(StepTable):
        if field.name not in values:
            values[field.name] = np.concatenate([getattr(table, field.name) for table in tables])[order]
    return StepTable(**values)
