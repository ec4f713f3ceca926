"""Evidence of a stored run: its records, its prompts made again, and replays with one parameter changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from engine.errors import EngineError
from workbench.capacity.diagnosis import load
from workbench.capacity.diagnosis.evidence import Evidence, Memory, PrefixFacts, Sharing, Trial
from workbench.capacity.diagnosis.queueing import parameters_by_share
from workbench.capacity.diagnosis.run_evidence import (
    admission_of,
    blocking_of,
    fleet_of,
    limits_of_run,
    preemptions_of,
    timeline_of,
    traffic_of,
)
from workbench.capacity.diagnosis.sharing import find_sharing
from workbench.metrics.attainment import SloPolicy
from workbench.metrics.records import RunRecord
from workbench.metrics.summary import summarize
from workbench.metrics.windows import Window, cut_to
from workbench.scenario import Scenario, ScenarioError
from workbench.search.rate import rate_at, rung
from workbench.services.describe import limits_of
from workbench.services.doctor_replay import MOST_STEPS, Replayer
from workbench.services.targets import device_of
from workbench.store.runs import StoredRun, load_run
from workbench.workload import generate_workload
from workbench.workload.rate import arrival_rate, at_rate
from workbench.workload.records import Workload

_MOST_PROMPTS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorInput:
    """A stored run, read once: what rules look at, and what replays need."""

    evidence: Evidence
    replayer: Replayer | None
    """None where nothing can be replayed: no simulation, or its requests cannot be made again."""


def read_run(directory: Path) -> DoctorInput:
    """Read a run, its measured window only. Raises `StoreError` for a run that cannot be read."""
    run = load_run(directory)
    notes: list[str] = []
    scenario = _scenario(run, notes)
    record = run.record if run.info.window_s is None else cut_to(run.record, _window(run.info.window_s))
    stated = {**(run.info.scenario.get("engine") or {}), **run.info.params}
    target = {**(run.info.scenario.get("target") or {}), **run.info.params}
    cap = (run.info.scenario.get("workload") or {}).get("max_concurrency")
    policy = None if scenario is None else SloPolicy.from_scenario(scenario)
    workload = None if scenario is None else _workload(scenario, run, notes)
    evidence = Evidence(
        source="run",
        timeline=timeline_of(record),
        limits=limits_of_run(record.engine, stated, target),
        traffic=traffic_of(record, summarize(record, policy), cap),
        fleet=fleet_of(record),
        admission=admission_of(record.steps),
        preemptions=preemptions_of(record),
        prefix=_prefix(record, workload),
        memory=_memory(run, scenario),
        blocking=blocking_of(record.requests),
        notes=tuple(notes),
    )
    if scenario is None or workload is None or scenario.target.kind != "simulated":
        return DoctorInput(evidence=evidence, replayer=None)
    if len(run.record.steps) > MOST_STEPS:
        return DoctorInput(evidence=evidence, replayer=None)
    replayer = Replayer(scenario=scenario, run=run, workload=workload)
    if not _is_worth_replaying(evidence):
        return DoctorInput(evidence=evidence, replayer=replayer)
    return DoctorInput(evidence=replace(evidence, trials=tuple(_trials(replayer, evidence))), replayer=replayer)


def _window(span: Sequence[float]) -> Window:
    return Window(start_s=span[0], end_s=span[1])


def _scenario(run: StoredRun, notes: list[str]) -> Scenario | None:
    try:
        return Scenario.model_validate(dict(run.info.scenario))
    except ValidationError as error:
        notes.append(f"the stored scenario cannot be read any more ({error.error_count()} problems): prompts unknown")
        return None


def _workload(scenario: Scenario, run: StoredRun, notes: list[str]) -> Workload | None:
    """The run's requests, made again from its seed."""
    if scenario.target.kind == "endpoint":
        return None  # its prompts had a seed of their own
    try:
        workload = generate_workload(scenario, limits_of(scenario), seed=run.info.seed)
    except (ScenarioError, EngineError, OSError) as error:
        notes.append(f"the run's prompts cannot be made again ({str(error).splitlines()[0]})")
        return None
    if workload.fingerprint == run.info.workload_fingerprint:
        return workload
    stretched = _stretched(workload, run)
    if stretched is None:
        notes.append("the run's prompts cannot be made again: its scenario now gives other requests")
    return stretched


def _stretched(workload: Workload, run: StoredRun) -> Workload | None:
    """The workload at the rate of the run: one of those that a search for the sustainable rate tried."""
    known, table = arrival_rate(workload), run.record.requests
    if known is None or len(table) != len(workload):
        return None
    first = slice(None) if workload.turn_pacing is None else workload.turn_pacing.previous_row < 0
    span_s = float(np.ptp(table.arrival_s[first]))
    if span_s <= 0.0:
        return None
    nearest = rung(known * float(np.ptp(workload.arrival_s[first])) / span_s)
    found = (at_rate(workload, rate_at(index)) for index in (nearest, nearest - 1, nearest + 1))
    return next((other for other in found if other.fingerprint == run.info.workload_fingerprint), None)


def _prefix(record: RunRecord, workload: Workload | None) -> PrefixFacts:
    queried = record.prefix_queried_tokens
    rate = record.prefix_hit_tokens / queried if queried else None
    if rate is None or workload is None or rate >= 0.05:
        return PrefixFacts(hit_rate=rate)
    return PrefixFacts(hit_rate=rate, are_prompts_known=True, sharing=_sharing(workload, record))


def _sharing(workload: Workload, record: RunRecord) -> Sharing | None:
    """Over a sample spread evenly over the run."""
    rows = np.unique(np.linspace(0, len(workload) - 1, min(_MOST_PROMPTS, len(workload))).astype(int))
    prompts = [np.asarray(workload.prompt_token_ids(int(row))) for row in rows]
    return find_sharing(prompts, [str(row) for row in rows])


def _memory(run: StoredRun, scenario: Scenario | None) -> Memory:
    failure = run.info.failure or next(iter(run.record.requests.errors.values()), None)
    broke = failure if failure is not None and "out of memory" in failure.lower() else None
    if scenario is None or scenario.target.kind != "simulated":
        return Memory(out_of_memory=broke, ran_before=broke is not None)
    plan = _kv_plan(run.record.engine, scenario)
    return Memory(
        device_bytes=None if plan is None else plan.device_bytes,
        activation_bytes=None if plan is None else plan.activation.peak_bytes,
        out_of_memory=broke,
        ran_before=broke is not None,
    )


def _kv_plan(engine: Mapping[str, Any], scenario: Scenario) -> Any:
    from engine.simulation import find_simulated_spec
    from workbench.capacity.kv_plan import Deployment, plan_kv
    from workbench.scenario.target import SimulatedTarget

    target = scenario.target
    if not isinstance(target, SimulatedTarget) or target.gpu is None:
        return None
    device = device_of(target)
    names = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "block_size")
    values = {name: engine[name] for name in names if engine.get(name) is not None}
    deployment = Deployment(spec=find_simulated_spec(scenario.model), device=device, engine=values)
    return plan_kv(deployment, max_model_len=int(engine.get("max_model_len") or deployment.spec.window))


def _is_worth_replaying(evidence: Evidence) -> bool:
    traffic = evidence.traffic
    is_blocked = evidence.blocking is not None and traffic.meets_slo is not True
    is_slow = traffic.misses_ttft and not traffic.is_client_capped
    return traffic.is_batch or load.is_queueing(evidence) or load.is_slowing(evidence) or is_slow or is_blocked


def _trials(replayer: Replayer, evidence: Evidence) -> Iterator[Trial]:
    """Lift one limit after another, until one of them is shown to be the cause."""
    limits = evidence.limits
    budget, cap, blocks = limits.max_num_batched_tokens, limits.max_num_seqs, limits.num_blocks
    if budget is None or cap is None or blocks is None:
        return
    known = {
        "max_num_batched_tokens": (budget, max(4 * budget, 2048)),
        "max_num_seqs": (cap, max(min(4 * cap, budget), cap)),
        "num_blocks": (blocks, 2 * blocks),
        "long_prefill_token_threshold": (0, max(64, min(budget // 4, 1024))),
    }
    names = [] if evidence.blocking is None else ["long_prefill_token_threshold"]
    base = replayer.as_stored
    for name in [*names, *parameters_by_share(evidence)]:
        before, value = known[name]
        found = None if value == before else replayer.replay({f"engine.{name}": value})
        if found is None:
            continue
        trial = Trial(
            parameter=name,
            before=before,
            value=value,
            ttft_p95_s=(base.figure("ttft_s.p95"), found.figure("ttft_s.p95")),
            short_ttft_p95_s=(base.figure("short_ttft_s.p95"), found.figure("short_ttft_s.p95")),
            completion_rate=(base.figure("requests_per_s"), found.figure("requests_per_s")),
            cures_slo=evidence.traffic.meets_slo is False and found.meets_slo is True,
            is_batch=evidence.traffic.is_batch,
        )
        yield trial
        if trial.helps and name not in names:
            return  # the cause is found
