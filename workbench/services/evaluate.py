"""One scenario, one configuration, one run: the step that `run`, `sweep` and everything above them share."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from engine.catalog import find_gpu
from workbench.capacity.cost import rent_of
from workbench.loadgen.target import ProgressCallback
from workbench.metrics.attainment import SloPolicy
from workbench.metrics.binding import Binding, binding_of
from workbench.metrics.records import RunRecord, StopRule
from workbench.metrics.steady import STEADY_S, steady_window
from workbench.metrics.summary import RunSummary, summarize
from workbench.metrics.verdict import Expectations, Verdict, judge
from workbench.metrics.windows import Window, measurement_window
from workbench.records.basis import Basis
from workbench.scenario import Scenario, ScenarioError, scenario_to_dict
from workbench.scenario.arrivals import DiurnalArrivals, TraceArrivals
from workbench.services.targets import RunnableTarget, build_target
from workbench.store.provenance import collect_provenance
from workbench.store.runs import RunInfo, StoredRun, save_run
from workbench.workload import generate_workload
from workbench.workload.records import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A finished run and what was made of it."""

    scenario: Scenario
    params: Mapping[str, Any]
    seed: int
    workload: Workload
    record: RunRecord
    summary: RunSummary
    verdict: Verdict

    @property
    def binding(self) -> Binding | None:
        """What limited admission; None for a foreign endpoint."""
        return binding_of(self.record)

    @property
    def basis(self) -> Basis:
        """What the figures rest on."""
        return Basis.of(self.scenario.target.kind, self.scenario.model, self.record.engine)

    def to_json(self) -> dict[str, Any]:
        """The object of `workbench run --json`."""
        return {
            "basis": self.basis.to_dict(),
            "scenario": self.scenario.name,
            "engine": dict(self.record.engine),
            "metrics": self.summary.overall.to_dict(),
            "limits": [limit.to_dict() for limit in self.summary.limits],
            "classes": {name: metrics.to_dict() for name, metrics in self.summary.classes.items()},
            "verdict": self.verdict.status.value,
            "reasons": self.verdict.messages,
            "binding": None if self.binding is None else self.binding.to_dict(),
            "decision_fingerprint": self.record.decision_fingerprint,
            "workload_fingerprint": self.workload.fingerprint,
            "requests": self.workload.summary.account.to_dict(),
            "workload": self.workload.summary.to_dict(),
            "notes": list(self.record.notes),
            "fleet": None if self.record.fleet is None else dict(self.record.fleet),
        }


def run_scenario(
    scenario: Scenario,
    params: Mapping[str, Any] | None = None,
    *,
    seed: int | None = None,
    on_progress: ProgressCallback | None = None,
    stop: StopRule | None = None,
) -> RunResult:
    """Run a scenario with `params` on top of its engine section.

    Raises `ScenarioError` or `engine.errors.ConfigError` before anything runs, `RunFailed` when the target breaks.
    """
    params = dict(params or {})
    target = build_target(scenario, params)
    try:
        return measure(target, scenario, params, seed=seed, on_progress=on_progress, stop=stop)
    finally:
        target.close()


def measure(
    target: RunnableTarget,
    scenario: Scenario,
    params: Mapping[str, Any],
    *,
    seed: int | None = None,
    on_progress: ProgressCallback | None = None,
    stop: StopRule | None = None,
) -> RunResult:
    """One run on a target that stands."""
    seed = scenario.seed if seed is None else seed
    # A server outlives the run, and so does its prefix cache: prompts of its own keep a repeat from hitting it.
    prompt_seed = secrets.randbits(31) if scenario.target.kind == "endpoint" else None
    workload = generate_workload(scenario, target.limits, seed=seed, prompt_seed=prompt_seed)
    record = target.run(workload, deadline_s=deadline_of(workload), on_progress=on_progress, stop=stop)
    return assess(scenario, params, seed, workload, record)


def assess(
    scenario: Scenario, params: Mapping[str, Any], seed: int, workload: Workload, record: RunRecord
) -> RunResult:
    """Figures and verdict of a record."""
    record = _with_rent(record)
    window = window_of(scenario, workload, record)
    summary = summarize(record, SloPolicy.from_scenario(scenario), window)
    verdict = judge(
        record,
        summary,
        Expectations(
            statistics=decisive_statistics(scenario),
            declares_sharing=workload.declares_sharing,
            is_steady=is_steady(scenario, workload),
            has_concurrency_cap=workload.max_concurrency is not None,
            prefers_low_latency=scenario.search is not None and not scenario.search.maximize,
        ),
    )
    return RunResult(
        scenario=scenario,
        params=params,
        seed=seed,
        workload=workload,
        record=record,
        summary=summary,
        verdict=verdict,
    )


def _with_rent(record: RunRecord) -> RunRecord:
    """What the replicas of a fleet cost for as long as each was there."""
    if record.fleet is None:
        return record
    gpu_seconds = record.fleet["replica_seconds"] * int(record.engine["tensor_parallel_size"])
    rent = rent_of(find_gpu(str(record.engine["gpu"])), gpu_seconds, {})
    source = rent["source"].partition(" http")[0]
    cost = source if rent["usd"] is None else f"${rent['usd']:g} at {source}"
    note = f"rent: {rent['gpu_hours']:g} GPU-hours, {cost}"
    return replace(record, fleet={**record.fleet, "rent": rent}, notes=(*record.notes, note))


def is_steady(scenario: Scenario, workload: Workload) -> bool:
    """The load stays the same by design, and lasts a minute: what moves is the server. A trace moves itself."""
    spec = scenario.workload
    if spec.rate_refusal or workload.turn_pacing is not None or workload.closed_loop is not None:
        return False
    if any(isinstance(each, (TraceArrivals, DiurnalArrivals)) for each in spec.all_arrivals):
        return False
    return (workload.summary.span_s or 0.0) >= STEADY_S


def window_of(scenario: Scenario, workload: Workload, record: RunRecord) -> Window:
    """The part that counts: as the scenario says, or else recognised where there is a steady state to look for.

    Raises `ScenarioError` where warm-up and cool-down leave nothing.
    """
    warm_up, cool_down = scenario.measurement.warm_up, scenario.measurement.cool_down
    if warm_up is None and cool_down is None and is_steady(scenario, workload) and len(record.requests):
        return steady_window(record)
    try:
        return measurement_window(record, warm_up_s=warm_up or 0.0, cool_down_s=cool_down or 0.0)
    except ValueError as error:
        raise ScenarioError(str(error)) from error


def store_run(directory: Path, result: RunResult, *, failure: str | None = None) -> Path:
    """Write a run with everything that is needed to judge or repeat it."""
    info = RunInfo(
        created_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        scenario=scenario_to_dict(result.scenario),
        seed=result.seed,
        workload_fingerprint=result.workload.fingerprint,
        params=dict(result.params),
        metrics=result.summary.overall.to_dict(),
        classes={name: metrics.to_dict() for name, metrics in result.summary.classes.items()},
        verdict=result.verdict.status.value,
        reasons=result.verdict.messages,
        failure=failure,
        window_s=(result.summary.window.start_s, result.summary.window.end_s),
        provenance=collect_provenance(),
    )
    return save_run(directory, StoredRun(info=info, record=result.record))


def decisive_statistics(scenario: Scenario) -> tuple[str, ...]:
    """Latency statistics that the objective or a percentile limit decides by."""
    names = []
    if scenario.search is not None:
        names += [name for name in scenario.search.objectives if "." in name]
    slos = [scenario.slo, *(kind.slo for kind in scenario.workload.classes)]
    for slo in slos:
        for limit in slo.limits if slo is not None else ():
            if limit.is_percentile:
                names.append(f"{limit.metric}.p{limit.percent:g}")
    return tuple(dict.fromkeys(names))


def deadline_of(workload: Workload) -> float | None:
    """An open-loop run that needs four times its own span (and a minute) is over capacity: what is open then stays
    unfinished. A closed loop ends by itself."""
    span_s = workload.summary.span_s
    if span_s is None or workload.closed_loop is not None:
        return None
    if workload.turn_pacing is not None:  # whoever comes last still has all the turns of a conversation to go
        num_sessions = int(workload.session_index.max()) + 1
        thinking = np.bincount(
            workload.session_index + 1, weights=workload.turn_pacing.think_time_s, minlength=num_sessions + 1
        )
        span_s += float(thinking[1:].max())
    return 4.0 * span_s + 60.0
