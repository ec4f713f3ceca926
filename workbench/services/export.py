"""`workbench export`: from a study, a run or a plan to files that start it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.catalog import GpuSpec, find_catalog_model, find_gpu, published_name
from engine.config import engine_field_names
from engine.errors import ConfigError
from engine.planned_config import stated_quantization
from engine.simulation import GRAPHS_BUDGETED_SINCE, device_memory_bytes, find_simulated_spec, graph_bytes
from workbench.capacity.deployment import DeploymentPlan, Pool, read_deployment
from workbench.report.export import FORMATS, DeploymentFacts, PoolFacts, RouterFacts, render
from workbench.report.export.command import arguments, quoted
from workbench.report.export.facts import OptionValue
from workbench.report.export.gpu_products import PRODUCT_LABEL, find_product
from workbench.report.export.vllm_options import UnknownOption, check_option, list_versions
from workbench.scenario import ScenarioError
from workbench.services.export_source import ExportSource, deployment_from, dns_name, read_run_source, read_study_source
from workbench.services.report import find_run, find_study
from workbench.store.plans import read_plan
from workbench.store.runs import RUN_FILE
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
    trial: int | None = None,
    vllm_version: str | None = None,
    options: Mapping[str, OptionValue] | None = None,
    pool: str | None = None,
    namespace: str = "default",
) -> Exported:
    """Render one file; `trial` chooses another of a study's trials than the winner.

    Raises `ConfigError` for an option that the version lacks, `ScenarioError` for what cannot be deployed.
    """
    if format_name not in FORMATS:
        raise ConfigError(f"--format: must be one of {', '.join(FORMATS)} (got {format_name!r})")
    version = vllm_version or list_versions()[-1]
    found = _read(source, trial)
    facts, warnings = _facts(found, version, options or {})
    facts = replace(facts, namespace=namespace)
    if pool is not None and pool not in {item.name for item in facts.pools}:
        raise ConfigError(f"--pool: must be one of {', '.join(item.name for item in facts.pools)} (got {pool!r})")
    text = render(format_name, facts, pool)
    return Exported(format=format_name, text=text, vllm_version=version, warnings=warnings)


def _read(source: Path, trial: int | None) -> ExportSource:
    if source.is_file() and source.name not in (STUDY_FILE, RUN_FILE):
        if trial is not None:
            raise ConfigError(f"--trial: {source} is a plan, which has no trials. Leave it out")
        return _read_plan(source)
    folder = source.parent if source.is_file() else source
    try:
        directory = find_study(folder)
    except ScenarioError:
        if trial is not None:
            raise ScenarioError(f"--trial: {source} is not a study. Name a study, or leave --trial out") from None
    else:
        return read_study_source(directory, trial)
    try:
        return read_run_source(find_run(folder))
    except ScenarioError:
        raise ScenarioError(
            f"{source}: is neither a study, nor a run, nor a plan file. Give a folder below reports/ or what "
            "`workbench plan --write` made"
        ) from None


def _read_plan(path: Path) -> ExportSource:
    value = read_plan(path, ("deployment",))
    return ExportSource(
        name=dns_name(str(value.get("name") or path.stem)),
        plan=read_deployment(value["deployment"], str(path)),
        provenance=tuple(_plan_provenance(path, value)),
    )


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
    source: ExportSource, version: str, options: Mapping[str, OptionValue]
) -> tuple[DeploymentFacts, tuple[str, ...]]:
    plan, gpu = source.plan, _find_gpu(source.plan.gpu)
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
    warnings = [*dict.fromkeys([*source.warnings, *warnings, *_model_warnings(plan), *_gpu_warnings(gpu)])]
    lines = [*source.provenance, *_gpu_lines(plan, gpu), f"vLLM {version}: every option below is one of its options."]
    facts = DeploymentFacts(
        name=source.name,
        model=published_name(plan.model),
        vllm_version=version,
        image=f"vllm/vllm-openai:v{version}",
        gpus_per_replica=plan.tensor_parallel_size,
        gpu=None if gpu is None else gpu.id,
        pools=tuple(pools),
        scale_at_waiting=plan.scale_at_waiting,
        provenance=(*lines, *(f"warning: {warning}" for warning in warnings)),
        router=_router(plan, pools),
    )
    return facts, tuple(warnings)


def _find_gpu(name: str | None) -> GpuSpec | None:
    """The catalogue's GPU; None where a plan names none, or one of its own."""
    try:
        return None if name is None else find_gpu(name)
    except ConfigError:
        return None


def _gpu_lines(plan: DeploymentPlan, gpu: GpuSpec | None) -> Iterator[str]:
    name = plan.gpu if gpu is None else gpu.name
    if name is None:
        return
    each, replicas = plan.tensor_parallel_size, sum(pool.replicas for pool in plan.pools) or plan.replicas
    several = "s" if replicas > 1 else ""
    yield f"GPUs: {each} x {name} per replica, {replicas} replica{several}: {each * replicas} in all"


def _gpu_warnings(gpu: GpuSpec | None) -> Iterator[str]:
    if gpu is not None and find_product(gpu.id) is None:
        yield f"the node label {PRODUCT_LABEL} of {gpu.name} is not known: the Kubernetes manifest selects no nodes"
    if gpu is not None and gpu.vendor != "NVIDIA":
        yield f"{gpu.name} needs an image, device driver and resource name of {gpu.vendor} in place of NVIDIA's"


def vllm_options(
    plan: DeploymentPlan, pool: Pool, version: str, further: Mapping[str, OptionValue], warnings: list[str]
) -> Iterator[tuple[str, OptionValue]]:
    """(vLLM's name, value), checked. Raises `ConfigError`."""
    found: dict[str, OptionValue] = {}
    engine = {**plan.engine, **pool.engine}
    if plan.tensor_parallel_size > 1:
        found["tensor-parallel-size"] = plan.tensor_parallel_size
    if plan.quantization == "fp8" and stated_quantization(plan.model) is None:
        found["quantization"] = "fp8"
    if plan.kv_cache_dtype:
        found["kv-cache-dtype"] = plan.kv_cache_dtype
    for key, value in engine.items():
        if key not in engine_field_names():
            raise ConfigError(f"deployment.engine: {key!r} is not an engine parameter. vLLM's own go into options")
        if value is None or key in _SILENT:
            continue
        if key in _OURS or (key == "block_size" and int(value) % _BLOCK_MULTIPLE):
            warnings.append(f"{key} {value} is for this project's engine only and was left out")
            continue
        found[_RENAMED.get(key, key.replace("_", "-"))] = value
    if "gpu-memory-utilization" in found:
        found["gpu-memory-utilization"] = _utilization_for(version, plan, engine, warnings)
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


def _utilization_for(version: str, plan: DeploymentPlan, engine: Mapping[str, Any], warnings: list[str]) -> float:
    """The utilisation that gives the same KV cache: versions before 0.21 capture their graphs outside of it."""
    stated = float(engine["gpu_memory_utilization"])
    gpu = _find_gpu(plan.gpu)
    is_inside = _budgets_graphs(version)
    if gpu is None or is_inside == (plan.vllm_version is None or _budgets_graphs(plan.vllm_version)):
        return stated
    try:
        spec = find_simulated_spec(plan.model)
    except ConfigError:
        return stated
    graphs = graph_bytes(spec, enforce_eager=bool(engine.get("enforce_eager")))
    share = graphs / device_memory_bytes(gpu)
    same = round(stated + (share if is_inside else -share), 4)
    if same != stated:
        warnings.append(
            f"gpu_memory_utilization {stated:g} is written as {same:g}, which gives the same KV cache: vLLM {version} "
            f"captures CUDA graphs (about {graphs / 2**30:.2f} GiB) {'inside' if is_inside else 'outside'} of it"
        )
    return same


def _budgets_graphs(version: str) -> bool:
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= GRAPHS_BUDGETED_SINCE


def serve_command(plan: DeploymentPlan) -> str:
    """Write the command line of one instance, in the options of the newest version that is known; a model that is
    built into this project is served by it. Raises `ConfigError` for a parameter that is no option."""
    from engine.models.builtin import BUILTIN_SPECS

    if plan.model in BUILTIN_SPECS:
        settings = [word for name, value in plan.engine.items() for word in ("--set", f"{name}={value}") if value]
        return quoted(["workbench", "serve", "--model", plan.model, *settings])
    options = tuple(vllm_options(plan, Pool(name="main"), list_versions()[-1], {}, []))
    pool = PoolFacts(name="main", options=options, replicas=1, max_replicas=1)
    return quoted(["vllm", "serve", published_name(plan.model), *arguments(pool)])


def serve_line(scenario: Mapping[str, Any], params: Mapping[str, Any], resolved: Mapping[str, Any]) -> str | None:
    """Write the command that starts a run's configuration; None for one that vLLM's options cannot say."""
    try:
        return serve_command(deployment_from(scenario, params, resolved))
    except ConfigError:
        return None


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
