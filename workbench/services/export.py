"""`workbench export`: from a study's winner or a plan to files that start it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.catalog import find_catalog_model, published_name
from engine.config import engine_field_names
from engine.errors import ConfigError
from engine.planned_config import stated_quantization
from workbench.capacity.deployment import DeploymentPlan, Pool, read_deployment
from workbench.report.export import FORMATS, DeploymentFacts, PoolFacts, RouterFacts, render
from workbench.report.export.facts import OptionValue
from workbench.report.export.vllm_options import UnknownOption, check_option, list_versions
from workbench.scenario import ScenarioError
from workbench.services.export_study import plan_of_study
from workbench.services.plan_file import read_plan
from workbench.services.report import find_study
from workbench.store.studies import STUDY_FILE

_SILENT = frozenset({"model", "dtype", "kv_cache_dtype", "seed"})
"""Said elsewhere, or without effect on a deployment."""
_OURS = frozenset({"device_memory", "kv_policy", "preemption", "batching", "threads", "device", "attention_backend"})
_BLOCK_MULTIPLE = 16
"""vLLM's attention kernels on GPUs take multiples of it."""
_RENAMED = {"num_blocks": "num-gpu-blocks-override"}
_CHECKPOINT_ONLY = {"int8": "GPTQ-Int8 or W8A8", "int4": "AWQ or GPTQ"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One file, not yet written."""

    format: str
    text: str
    vllm_version: str
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The object of `workbench export --json`."""
        return {
            "format": self.format,
            "vllm_version": self.vllm_version,
            "text": self.text,
            "warnings": list(self.warnings),
        }


def export(
    source: Path,
    format_name: str,
    *,
    vllm_version: str | None = None,
    options: Mapping[str, OptionValue] | None = None,
    pool: str | None = None,
    namespace: str = "default",
) -> Exported:
    """Raises `ConfigError` for an option that the version lacks, `ScenarioError` for what is no study or plan."""
    if format_name not in FORMATS:
        raise ConfigError(f"--format: must be one of {', '.join(FORMATS)} (got {format_name!r})")
    version = vllm_version or list_versions()[-1]
    name, plan, provenance, warnings = _read(source)
    provenance = (*provenance, *(f"warning: {warning}" for warning in warnings))
    facts, more = _facts(name, plan, provenance, version, options or {})
    facts = replace(facts, namespace=namespace)
    if pool is not None and pool not in {item.name for item in facts.pools}:
        raise ConfigError(f"--pool: must be one of {', '.join(item.name for item in facts.pools)} (got {pool!r})")
    text = render(format_name, facts, pool)
    return Exported(format=format_name, text=text, vllm_version=version, warnings=(*warnings, *more))


def _read(source: Path) -> tuple[str, DeploymentPlan, tuple[str, ...], tuple[str, ...]]:
    """(name, what to deploy, provenance, warnings)."""
    if source.is_file() and source.name != STUDY_FILE:
        return _read_plan(source)
    try:
        directory = find_study(source.parent if source.name == STUDY_FILE else source)
    except ScenarioError:
        raise ScenarioError(f"{source}: is neither a study nor a plan file") from None
    return plan_of_study(directory)


def _read_plan(path: Path) -> tuple[str, DeploymentPlan, tuple[str, ...], tuple[str, ...]]:
    value = read_plan(path, ("deployment",))
    plan = read_deployment(value["deployment"], str(path))
    return _dns(str(value.get("name") or path.stem)), plan, tuple(_plan_provenance(path, value)), ()


def _plan_provenance(path: Path, value: Mapping[str, Any]) -> Iterator[str]:
    yield f"Exported by `workbench export {path.name}`."
    yield f"plan: {value.get('name') or path.stem}"
    provenance = value.get("provenance")
    if isinstance(provenance, Mapping) and provenance.get("commit"):
        yield f"git commit: {provenance['commit']}" + (
            " (with local changes)" if provenance.get("has_local_changes") else ""
        )
    instance = value.get("instance")
    rate = instance.get("sustainable_rate_per_s") if isinstance(instance, Mapping) else None
    if isinstance(rate, Mapping):
        yield (
            f"evidence: one instance sustains {rate.get('value')} requests/s ({rate.get('low')} to {rate.get('high')}; "
            f"{rate.get('source')})"
        )
    replicas = value.get("replicas")
    if isinstance(replicas, Mapping):
        names = ("minimum", "with_headroom", "n_minus_1")
        yield "replicas: " + ", ".join(f"{name} {replicas[name]}" for name in names if name in replicas)
        for run in replicas.get("simulated") or ():
            outcome = run["reason"] or "all limits held"
            several = "s" if run["replicas"] > 1 else ""
            yield f"evidence: {run['replicas']} replica{several} at {run['rate_per_s']:g}/s: {outcome}"


def _facts(
    name: str, plan: DeploymentPlan, provenance: Sequence[str], version: str, options: Mapping[str, OptionValue]
) -> tuple[DeploymentFacts, tuple[str, ...]]:
    warnings: list[str] = []
    pools = []
    for pool in plan.pools or (Pool(name="main", replicas=plan.replicas),):
        most = plan.max_replicas or 2 * pool.replicas
        pools.append(
            PoolFacts(
                name=pool.name,
                options=tuple(vllm_options(plan, pool, version, options, warnings)),
                replicas=pool.replicas,
                max_replicas=max(most, pool.replicas),
                max_prompt_tokens=pool.max_prompt_tokens,
            )
        )
    warnings += _model_warnings(plan)
    lines = [*provenance, f"vLLM {version}: every option below is one of its options."]
    facts = DeploymentFacts(
        name=name,
        model=published_name(plan.model),
        vllm_version=version,
        image=f"vllm/vllm-openai:v{version}",
        gpus_per_replica=plan.tensor_parallel_size,
        gpu=plan.gpu,
        pools=tuple(pools),
        scale_at_waiting=plan.scale_at_waiting,
        provenance=(*lines, *(f"warning: {warning}" for warning in dict.fromkeys(warnings))),
        router=_router(plan, pools),
    )
    return facts, tuple(dict.fromkeys(warnings))


def vllm_options(
    plan: DeploymentPlan, pool: Pool, version: str, further: Mapping[str, OptionValue], warnings: list[str]
) -> Iterator[tuple[str, OptionValue]]:
    """(vLLM's name, value), checked. Raises `ConfigError`."""
    found: dict[str, OptionValue] = {}
    if plan.tensor_parallel_size > 1:
        found["tensor-parallel-size"] = plan.tensor_parallel_size
    if plan.quantization == "fp8" and stated_quantization(plan.model) is None:
        found["quantization"] = "fp8"
    if plan.kv_cache_dtype:
        found["kv-cache-dtype"] = plan.kv_cache_dtype
    for key, value in {**plan.engine, **pool.engine}.items():
        if key not in engine_field_names():
            raise ConfigError(f"deployment.engine: {key!r} is not an engine parameter. vLLM's own go into options")
        if value is None or key in _SILENT:
            continue
        if key in _OURS or (key == "block_size" and int(value) % _BLOCK_MULTIPLE):
            warnings.append(f"{key} {value} is for this project's engine only and was left out")
            continue
        found[_RENAMED.get(key, key.replace("_", "-"))] = value
    for name, value in {**plan.options, **further}.items():
        found[name.removeprefix("--").replace("_", "-")] = value
    for name, value in found.items():
        try:
            check_option(name, version)
        except UnknownOption as error:
            raise ConfigError(str(error)) from None
        if not isinstance(value, bool | int | float | str):
            raise ConfigError(f"option {name}: must be a text, a number or true/false (got {value!r})")
        yield name, value


def _model_warnings(plan: DeploymentPlan) -> Iterator[str]:
    from engine.models.builtin import BUILTIN_SPECS

    if plan.model in BUILTIN_SPECS or find_catalog_model(plan.model) is None:
        yield f"model {plan.model!r} is not in the catalogue: put in the name or folder that vLLM is to load"
    if plan.quantization in _CHECKPOINT_ONLY and stated_quantization(plan.model) != plan.quantization:
        yield (
            f"{plan.quantization} weights need a checkpoint quantised so ({_CHECKPOINT_ONLY[plan.quantization]}): put "
            "its name in place of the model's"
        )


def _router(plan: DeploymentPlan, pools: Sequence[PoolFacts]) -> RouterFacts | None:
    """Only where the plan calls for more than a service that spreads requests."""
    limit = plan.rate_limit
    if limit is None and len(pools) < 2 and plan.routing.kind in ("random", "round_robin"):
        return None
    in_flight = None
    if limit is not None and limit.queue_limit is not None:
        seats = [int(dict(pool.options).get("max-num-seqs", 256)) for pool in pools]
        in_flight = sum(pool.replicas * (seat + limit.queue_limit) for pool, seat in zip(pools, seats, strict=True))
    return RouterFacts(
        routing=plan.routing.kind,
        header=plan.routing.header,
        requests_per_s=None if limit is None else limit.requests_per_s,
        burst=0 if limit is None else limit.burst,
        per_client=limit is not None and limit.per_client,
        max_in_flight=in_flight,
    )


def _dns(name: str) -> str:
    """Lower-case letters, digits and dashes, at most 40, beginning with a letter."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return text if text[:1].isalpha() else f"llm-{text}".strip("-")
