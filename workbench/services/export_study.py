"""What a study says to deploy: its winner, with the evidence as lines of text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.catalog import published_name
from workbench.capacity.deployment import DeploymentPlan, Routing
from workbench.scenario import ScenarioError
from workbench.services.targets import split_params
from workbench.store.errors import StoreError
from workbench.store.runs import load_run, load_run_info
from workbench.store.studies import load_study

_PINNED = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "enable_chunked_prefill",
)
"""Written as they were resolved for the winner's run: another vLLM version has other defaults."""


def plan_of_study(directory: Path) -> tuple[str, DeploymentPlan, tuple[str, ...], tuple[str, ...]]:
    """(name, what to deploy, provenance, warnings). Raises `ScenarioError` where no trial won, `StoreError`."""
    study = load_study(directory)
    best = study.get("best")
    if not isinstance(best, dict) or not isinstance(study.get("scenario_resolved"), dict):
        raise ScenarioError(
            f"{directory}: has no winner to export. {study.get('conclusion') or 'Its sweep did not finish'}"
        )
    scenario = study["scenario_resolved"]
    trials: list[dict[str, Any]] = study.get("trials") or []
    trial = next((item for item in trials if item["number"] == best["number"]), {})
    run = directory / str(trial.get("run") or f"trial-{best['number']:04d}")
    resolved, provenance = _run_facts(run)
    device, params = split_params(best.get("params") or {})
    stated = {**(scenario.get("engine") or {}), **params}
    engine = {**{name: resolved[name] for name in _PINNED if resolved.get(name) is not None}, **stated}
    target = {**(scenario.get("target") or {}), **device}
    is_simulated = target.get("kind") == "simulated"
    plan = DeploymentPlan(
        model=published_name(str(scenario["model"])),
        gpu=target.get("gpu"),
        tensor_parallel_size=target.get("tensor_parallel_size") or 1,
        quantization=target.get("quantization"),
        kv_cache_dtype=target.get("kv_cache_dtype"),
        replicas=target.get("replicas") or 1,
        routing=Routing(kind=target.get("routing") or "round_robin"),
        engine=engine if is_simulated else {**engine, "gpu_memory_utilization": stated.get("gpu_memory_utilization")},
    )
    lines = tuple(_lines(directory, study, best, provenance))
    name = re.sub(r"[^a-z0-9]+", "-", str(study.get("scenario", directory.name)).lower()).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"llm-{name}", plan, lines, tuple(_warnings(study, scenario))


def _run_facts(run: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(resolved engine, provenance) of the winner's run; empty where it is not stored."""
    try:
        return load_run(run).record.engine, load_run_info(run).provenance
    except StoreError:
        return {}, {}


def _lines(
    directory: Path, study: Mapping[str, Any], best: Mapping[str, Any], provenance: Mapping[str, Any]
) -> Iterator[str]:
    yield f"Exported by `workbench export {directory.name}`."
    yield f"study: {study.get('study') or directory.name}, scenario {study.get('scenario')}, seed {study.get('seed')}"
    yield f"trial: {best['number']} of {len(study.get('trials') or ())}"
    commit = provenance.get("commit")
    changes = " (with local changes)" if provenance.get("has_local_changes") else ""
    yield f"git commit: {commit}{changes}" if commit else "git commit: unknown (not run from a checkout)"
    yield f"evidence: {study.get('conclusion')}"
    yield from _metric_lines(study, best)
    if study.get("slo"):
        yield "SLO: " + ", ".join(f"{name} {value}" for name, value in study["slo"].items())


def _metric_lines(study: Mapping[str, Any], best: Mapping[str, Any]) -> Iterator[str]:
    default = (study.get("default") or {}).get("metrics") or {}
    for name in ("goodput_rps", "requests_per_s", "output_tokens_per_s", "slo_attainment"):
        now, before = (best.get("metrics") or {}).get(name), default.get(name)
        if now is not None:
            yield f"  {name}: {now:.4g}" + ("" if before is None else f" (default {before:.4g})")
    for name in ("ttft_s", "tpot_s"):
        now, before = (((values or {}).get(name) or {}).get("p95") for values in (best.get("metrics"), default))
        if now is not None:
            yield f"  {name} p95: {now:.4g}" + ("" if before is None else f" (default {before:.4g})")


def _warnings(study: Mapping[str, Any], scenario: Mapping[str, Any]) -> Iterator[str]:
    kind = (scenario.get("target") or {}).get("kind")
    if kind == "simulated":
        yield "measured on a simulated GPU: confirm on the real one before the traffic comes"
    elif kind == "embedded":
        yield "measured on this project's CPU engine: the parameters carry over to a GPU in direction only"
    doubt = (study.get("confirmation") or {}).get("doubt")
    if doubt:
        yield f"the repeats do not confirm this winner: {doubt}"
    if study.get("stopped"):
        yield f"the sweep ended early: {study['stopped']}"
