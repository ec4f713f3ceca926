"""What a stored study or run says to deploy, with the evidence as lines of text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.catalog import published_name
from workbench.capacity.deployment import DeploymentPlan, Pool, Routing
from workbench.scenario import ScenarioError
from workbench.services.targets import split_params
from workbench.store.errors import StoreError
from workbench.store.runs import RunInfo, load_run, load_run_info
from workbench.store.studies import load_study

_PINNED = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "enable_chunked_prefill",
)
"""Written as they were resolved for the run: another vLLM version has other defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """What to deploy, and where that comes from."""

    name: str
    """Fit for DNS."""
    plan: DeploymentPlan
    provenance: tuple[str, ...]
    """Lines of text."""
    warnings: tuple[str, ...] = ()


def read_study_source(directory: Path, number: int | None = None) -> ExportSource:
    """Read a study's winner, or the trial of that number.

    Raises `ScenarioError` where no trial won or the trial cannot be deployed, `StoreError`.
    """
    study = load_study(directory)
    trial = _find_trial(directory, study, number)
    scenario = study["scenario_resolved"]
    run = directory / f"trial-{trial['number']:04d}"
    if trial.get("duplicate_of") is not None:
        run = directory / f"trial-{trial['duplicate_of']:04d}"
    resolved, provenance = _run_facts(run)
    return ExportSource(
        name=dns_name(str(study.get("scenario", directory.name))),
        plan=deployment_from(scenario, trial.get("params") or {}, resolved),
        provenance=tuple(_study_lines(directory, study, trial, provenance)),
        warnings=(*_target_warnings(scenario), *_study_warnings(study, trial)),
    )


def read_run_source(directory: Path) -> ExportSource:
    """Read the configuration of one stored run. Raises `StoreError`."""
    stored = load_run(directory)
    info = stored.info
    name = str(info.scenario.get("name") or directory.name)
    return ExportSource(
        name=dns_name(name),
        plan=deployment_from(info.scenario, info.params, stored.record.engine),
        provenance=tuple(_run_lines(directory, name, info)),
        warnings=(*_target_warnings(info.scenario), *_run_warnings(info)),
    )


def dns_name(name: str) -> str:
    """Reduce to lower-case letters, digits and dashes, at most 40, beginning with a letter."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return text if text[:1].isalpha() else f"llm-{text}".strip("-")


def _find_trial(directory: Path, study: Mapping[str, Any], number: int | None) -> dict[str, Any]:
    """The trial to deploy, with the winner's parameters where no number was given."""
    trials: dict[int, dict[str, Any]] = {trial["number"]: trial for trial in study.get("trials") or ()}
    best = study.get("best")
    if not isinstance(study.get("scenario_resolved"), dict) or (number is None and not isinstance(best, dict)):
        conclusion = study.get("conclusion") or "Its sweep did not finish"
        more = " To export a trial nevertheless, name it with --trial" if trials else ""
        raise ScenarioError(f"{directory}: has no winner to export. {conclusion}{more}")
    if number is None:
        assert isinstance(best, dict)
        return {**trials.get(best["number"], {}), **best}
    trial = trials.get(number)
    if trial is None:
        raise ScenarioError(f"--trial: {directory.name} has no trial {number}, only {_spans(sorted(trials))}")
    if trial.get("metrics") is None:
        reason = f": {trial['reason']}" if trial.get("reason") else ""
        raise ScenarioError(f"--trial: trial {number} gave no result ({trial['state']}{reason}). Choose a complete one")
    return trial


def _spans(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if numbers else "none"


def deployment_from(
    scenario: Mapping[str, Any], params: Mapping[str, Any], resolved: Mapping[str, Any]
) -> DeploymentPlan:
    """Say what to deploy: `params` on top of the scenario, as `resolved` for a run of them."""
    device, engine_params = split_params(params)
    stated = {**(scenario.get("engine") or {}), **engine_params}
    engine = {**{name: resolved[name] for name in _PINNED if resolved.get(name) is not None}, **stated}
    target = {**(scenario.get("target") or {}), **device}
    is_simulated = target.get("kind") == "simulated"
    scaling = target.get("autoscaling")
    return DeploymentPlan(
        model=published_name(str(scenario["model"])),
        gpu=target.get("gpu"),
        tensor_parallel_size=target.get("tensor_parallel_size") or 1,
        quantization=target.get("quantization"),
        kv_cache_dtype=target.get("kv_cache_dtype"),
        vllm_version=target.get("vllm_version"),
        replicas=scaling["min_replicas"] if scaling else target.get("replicas") or 1,
        max_replicas=scaling["max_replicas"] if scaling else None,
        scale_at_waiting=max(1, round(scaling["waiting_per_replica"])) if scaling else 5,
        pools=tuple(
            Pool(name=dns_name(pool["name"]), max_prompt_tokens=pool["max_input_tokens"], replicas=pool["replicas"])
            for pool in target.get("pools") or ()
            if pool["role"] is None
        ),
        routing=Routing(kind=target.get("routing") or "round_robin"),
        engine=engine if is_simulated else {**engine, "gpu_memory_utilization": stated.get("gpu_memory_utilization")},
    )


def _run_facts(run: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(resolved engine, provenance) of a trial's run; empty where it is not stored."""
    try:
        return load_run(run).record.engine, load_run_info(run).provenance
    except StoreError:
        return {}, {}


def _study_lines(
    directory: Path, study: Mapping[str, Any], trial: Mapping[str, Any], provenance: Mapping[str, Any]
) -> Iterator[str]:
    number = trial["number"]
    is_winner = number == (study.get("best") or {}).get("number")
    yield f"Exported by `workbench export {directory.name}{'' if is_winner else f' --trial {number}'}`."
    yield f"study: {study.get('study') or directory.name}, scenario {study.get('scenario')}, seed {study.get('seed')}"
    yield f"trial: {number} of {len(study.get('trials') or ())}{'' if is_winner else ', not the winner'}"
    yield _commit_line(provenance)
    yield f"evidence: {study.get('conclusion')}"
    default = (study.get("default") or {}).get("metrics") or {}
    yield from _metric_lines(trial.get("metrics") or {}, default)
    yield from _slo_lines(study.get("slo"))


def _run_lines(directory: Path, name: str, info: RunInfo) -> Iterator[str]:
    yield f"Exported by `workbench export {directory.name}`."
    yield f"run: {directory.name}, scenario {name}, seed {info.seed}, made {info.created_at}"
    yield _commit_line(info.provenance)
    yield f"evidence: one run, {info.verdict or 'without a verdict'}"
    yield from _metric_lines(info.metrics or {}, {})
    yield from _slo_lines(info.scenario.get("slo"))


def _commit_line(provenance: Mapping[str, Any]) -> str:
    commit = provenance.get("commit")
    changes = " (with local changes)" if provenance.get("has_local_changes") else ""
    return f"git commit: {commit}{changes}" if commit else "git commit: unknown (not run from a checkout)"


def _metric_lines(metrics: Mapping[str, Any], default: Mapping[str, Any]) -> Iterator[str]:
    for name in ("goodput_rps", "requests_per_s", "output_tokens_per_s", "slo_attainment"):
        now, before = metrics.get(name), default.get(name)
        if now is not None:
            yield f"  {name}: {now:.4g}" + ("" if before is None else f" (default {before:.4g})")
    for name in ("ttft_s", "tpot_s"):
        now, before = ((values.get(name) or {}).get("p95") for values in (metrics, default))
        if now is not None:
            yield f"  {name} p95: {now:.4g}" + ("" if before is None else f" (default {before:.4g})")


def _slo_lines(slo: Mapping[str, Any] | None) -> Iterator[str]:
    stated = {name: value for name, value in (slo or {}).items() if value is not None}
    if stated:
        yield "SLO: " + ", ".join(f"{name} {value}" for name, value in stated.items())


def _target_warnings(scenario: Mapping[str, Any]) -> Iterator[str]:
    target = scenario.get("target") or {}
    kind = target.get("kind")
    if any(pool.get("role") for pool in target.get("pools") or ()):
        yield "prefill and decode run apart there; written is one server that does both"
    if kind == "simulated":
        yield "predicted for a simulated GPU: confirm on the real one before the traffic comes"
    elif kind == "embedded":
        yield "measured on this project's CPU engine: the parameters carry over to a GPU in direction only"


def _study_warnings(study: Mapping[str, Any], trial: Mapping[str, Any]) -> Iterator[str]:
    doubt = (study.get("confirmation") or {}).get("doubt")
    if doubt:
        yield f"the repeats do not confirm this winner: {doubt}"
    if study.get("stopped"):
        yield f"the sweep ended early: {study['stopped']}"
    missed = [name for name, shortfall in (trial.get("constraints") or {}).items() if shortfall > 0]
    if missed:
        yield f"trial {trial['number']} misses {', '.join(missed)}"
    if trial.get("verdict") not in (None, "VALID"):
        yield f"trial {trial['number']} is {trial['verdict']}"


def _run_warnings(info: RunInfo) -> Iterator[str]:
    if info.failure:
        yield f"this run failed: {info.failure.splitlines()[0]}"
    elif info.verdict not in (None, "VALID"):
        yield f"this run is {info.verdict}"
