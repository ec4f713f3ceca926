"""What is wrong in a study: what its best trial still has, what the default had, or why nothing started."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.errors import EngineError
from engine.simulation import find_simulated_spec
from workbench.capacity.diagnosis import Change, Evidence, Finding, apply_rules
from workbench.capacity.diagnosis.evidence import Limits, Memory
from workbench.capacity.diagnosis.finding import Effect
from workbench.capacity.kv_plan import Deployment, plan_kv
from workbench.capacity.remedies import Remedy, find_remedies
from workbench.scenario import Scenario, ScenarioError
from workbench.scenario.target import SimulatedTarget
from workbench.services.describe import limits_of
from workbench.services.doctor_remedies import find_causes
from workbench.services.doctor_run import read_run
from workbench.services.targets import device_of, split_params, with_device
from workbench.store.runs import RUN_FILE
from workbench.workload import generate_workload

_KEYS = {"tp": "target.tensor_parallel_size", "kv_dtype": "target.kv_cache_dtype", "gpu": "target.gpu",
         "dtype": "target.quantization"}  # fmt: skip
"""Option of `workbench budget` -> key of a scenario; the others are engine parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFindings:
    """Findings, most severe first, and what could not be looked at."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def diagnose_study(directory: Path, values: Mapping[str, Any]) -> StudyFindings:
    """Look at the best trial and the default; where no trial gave a result, at their reasons. Raises `StoreError`."""
    trials = values.get("trials") or ()
    if trials and not any(trial.get("state") == "COMPLETE" for trial in trials):
        return StudyFindings(findings=(_nothing_started(values),), notes=())
    findings: dict[str, Finding] = {}
    notes: list[str] = []
    for trial, where in _told_trials(values):
        folder = directory / str(trial.get("run") or f"trial-{trial['number']:04d}")
        if not (folder / RUN_FILE).is_file():
            notes.append(f"trial {trial['number']}: its run is not stored")
            continue
        given = read_run(folder)
        notes += [f"trial {trial['number']}: {note}" for note in given.evidence.notes]
        for finding in find_causes(given.evidence, given.replayer):
            findings.setdefault(finding.code, replace(finding, where=where))
    for finding in _broken_trials(values):
        findings.setdefault(finding.code, finding)
    if not values.get("best"):
        notes.append("no trial of this study gave a result that counts")
    found = sorted(findings.values(), key=lambda finding: -finding.severity)
    return StudyFindings(findings=tuple(_one_value_each(found)), notes=tuple(dict.fromkeys(notes)))


def _one_value_each(findings: list[Finding]) -> Iterator[Finding]:
    """Two trials may call for two values of a parameter; the more severe finding's is told."""
    told: set[str] = set()
    for finding in findings:
        changes = tuple(change for change in finding.changes if change.parameter not in told)
        told.update(change.parameter for change in changes)
        yield replace(finding, changes=changes)


def _nothing_started(values: Mapping[str, Any]) -> Finding:
    """Why no trial ran: the most frequent reason, and what would make the default start."""
    trials = values["trials"]
    states = Counter(str(trial.get("state")) for trial in trials)
    reasons = [str(trial.get("reason") or "no reason given") for trial in trials]
    kinds = Counter(re.sub(r"[\d.,]+", "#", reason) for reason in reasons)
    (kind, count), *_ = kinds.most_common(1)
    example = next(reason for reason in reasons if re.sub(r"[\d.,]+", "#", reason) == kind)
    counted = ", ".join(f"{number} {state}" for state, number in states.most_common())
    return Finding(
        code="nothing_started",
        severity=100,
        symptom=f"none of {len(trials)} trials gave a result ({counted})",
        cause=f"{count} of them for this reason: {' '.join(example.split())}",
        evidence={"num_trials": len(trials), "states": dict(states), "num_with_this_reason": count},
        changes=tuple(_starting_changes(values)),
    )


def _starting_changes(values: Mapping[str, Any]) -> Iterator[Change]:
    """What makes the default start on a simulated GPU, by the functions that refused it."""
    try:
        scenario = Scenario.model_validate(values.get("scenario_resolved"))
        target = scenario.target
        if not isinstance(target, SimulatedTarget) or target.gpu is None:
            return
        device, params = split_params((values.get("default") or {}).get("params") or {})
        engine = {**scenario.engine, **params}
        spec = find_simulated_spec(scenario.model)
        deployment = Deployment(spec=spec, device=device_of(with_device(target, device)), engine=engine)
        refused = plan_kv(deployment, max_model_len=int(engine.get("max_model_len") or spec.max_position))
        remedies = () if refused.starts else find_remedies(deployment, refused)
    except (ValidationError, EngineError, ScenarioError):
        return
    longest = _longest_request(scenario)
    for remedy in remedies:
        if longest is not None and remedy.plan.max_model_len >= longest:
            yield _change_from(remedy)


def _longest_request(scenario: Scenario) -> int | None:
    """Prompt and output, in the model's own window; None where the requests cannot be made."""
    try:
        engine = {name: value for name, value in scenario.engine.items() if name != "max_model_len"}
        workload = generate_workload(scenario, limits_of(scenario.model_copy(update={"engine": engine})))
    except (EngineError, ScenarioError, OSError):
        return None
    return int((workload.num_prompt_tokens + workload.max_output_tokens).max())


def _change_from(remedy: Remedy) -> Change:
    options = dict(remedy.options)
    options |= options.pop("set", {})
    (name, value), *more = options.items()
    concurrency = remedy.plan.concurrency(remedy.plan.max_model_len)
    return Change(
        parameter=_KEYS.get(name, name).removeprefix("target."),
        value=value,
        note=remedy.change if more else "",
        settings=tuple(f"{_KEYS.get(key, f'engine.{key}')}={each}" for key, each in options.items()),
        effect=Effect(metric="full_length_concurrency", before=0.0, after=concurrency, is_better=True),
    )


def _told_trials(values: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """(trial, where a finding of it is): the best first, then the default."""
    trials = {trial["number"]: trial for trial in values.get("trials") or ()}
    best, default = values.get("best"), values.get("default")
    found = None if best is None else trials.get(best.get("number"))
    if found is not None:
        yield found, f"trial {found['number']}, the best"
    base = next((trial for trial in trials.values() if default and trial.get("params") == default.get("params")), None)
    if base is None or (found is not None and base["number"] == found["number"]):
        return
    params = "" if found is None else " ".join(f"{key}={value}" for key, value in found["params"].items())
    cure = "" if found is None else f"; the best trial ({params}) has it no more"
    yield base, f"trial {base['number']}, the default parameters{cure}"


def _broken_trials(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Trials that ran out of memory left no run to look at, only their reason."""
    broken = [
        trial
        for trial in values.get("trials") or ()
        if trial.get("state") == "FAILED" and "memory" in str(trial.get("reason") or "").lower()
    ]
    if not broken:
        return
    first = broken[0]
    limits = Limits(
        gpu_memory_utilization=first["params"].get("gpu_memory_utilization"),
        max_num_batched_tokens=first["params"].get("max_num_batched_tokens"),
    )
    memory = Memory(out_of_memory=str(first["reason"]), ran_before=True)
    for finding in apply_rules(Evidence(source="study", limits=limits, memory=memory)):
        yield replace(finding, severity=35, where=f"trial {first['number']} and {len(broken) - 1} more")
