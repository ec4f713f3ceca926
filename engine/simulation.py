"""An engine core over a simulated GPU: same scheduler and block manager, a cost model for a device, a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.build import build_scheduler
from engine.catalog import GpuSpec, attention_weights, find_catalog_model, find_gpu
from engine.catalog.advice import advice_on
from engine.clock import VirtualClock
from engine.config import GIB, MIB, EngineConfig
from engine.engine_core import EngineCore
from engine.errors import ConfigError
from engine.executor.cost_model.calibrated import AdjustedCost, Adjustment
from engine.executor.cost_model.deployment import Overheads, Precision
from engine.executor.cost_model.end_to_end import Factors, factors_for
from engine.executor.cost_model.operators import OperatorProfile
from engine.executor.cost_model.profiles import profile_for
from engine.executor.cost_model.rank_operators import RankOperators
from engine.executor.cost_model.step import StepCostModel
from engine.executor.cost_model.step_shape import StepCost
from engine.executor.simulated import SIMULATED_TOKEN, SimulatedExecutor
from engine.memory_model import find_step_limit, plan_memory
from engine.model_spec import ModelSpec
from engine.planned_config import TEXT_PART, load_planned_spec
from engine.resolve import ResolvedConfig

GPUS_PER_NODE = 8
"""Nearly all servers hold so many; an NVL72 rack is one domain of 72."""
CONTEXT_BYTES = 600 * MIB
"""CUDA context, libraries and communication buffers of one rank."""
GRAPHS_BUDGETED_SINCE = (0, 21)
ASYNC_SINCE = (0, 12)
"""Versions of vLLM."""
_GRAPH_BYTES_PER_LAYER = 12 * MIB
"""Pool of captured graphs, per layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDevice:
    """The hardware and precision of a deployment that is not here."""

    gpu: GpuSpec
    tensor_parallel_size: int = 1
    precision: Precision = field(default_factory=Precision)
    overheads: Overheads = field(default_factory=Overheads)
    factors: Factors | None = None
    """Of whole servers against operators; None: the catalogue's."""
    budgets_graphs: bool = True
    """Captured graphs come out of `gpu_memory_utilization`, as in vLLM since 0.21; before, they came on top."""
    is_async: bool = True
    """Asynchronous scheduling is the server's default, as in vLLM since 0.12."""

    @classmethod
    def of(
        cls,
        gpu: str,
        *,
        tensor_parallel_size: int = 1,
        quantization: str | None = None,
        kv_cache_dtype: str | None = None,
        vllm_version: tuple[int, ...] = (0, 32),
    ) -> SimulatedDevice:
        """By names. Raises `ConfigError` for an unknown GPU."""
        precision = Precision(weights=quantization or "bfloat16", kv=kv_cache_dtype or "bfloat16")
        return cls(
            gpu=find_gpu(gpu),
            tensor_parallel_size=tensor_parallel_size,
            precision=precision,
            budgets_graphs=vllm_version >= GRAPHS_BUDGETED_SINCE,
            is_async=vllm_version >= ASYNC_SINCE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A core that can run, and what it was made from."""

    core: EngineCore
    clock: VirtualClock
    resolved: ResolvedConfig
    cost: StepCostModel


def find_simulated_spec(model: str) -> ModelSpec:
    """Return geometry and window of a local directory or config.json, a built-in model, or a catalogue model.

    A path that exists wins. Raises `ConfigError` for a name that is none of them, `ModelLoadError` for a path that
    cannot be planned with.
    """
    from engine.models.builtin import BUILTIN_SPECS

    path = Path(model).expanduser()
    if path.is_dir() or (path.suffix == ".json" and path.is_file()):
        return load_planned_spec(path)
    found = BUILTIN_SPECS.get(model) or find_catalog_model(model)
    if found is not None:
        return found
    raise ConfigError(
        f"model: {model!r} is neither in the catalogue nor a directory with a config.json. {advice_on(model)}"
    )


def gpu_defaults(gpu: GpuSpec) -> dict[str, int]:
    """vLLM's server defaults for a device of this size (VLLM_SEMANTICS, section 8)."""
    if gpu.memory_bytes >= 160 * GIB:
        return {"max_num_batched_tokens": 16384, "max_num_seqs": 1024}
    if gpu.memory_bytes >= 70 * GIB and not gpu.id.startswith("a100"):
        return {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    return {"max_num_batched_tokens": 2048, "max_num_seqs": 256}


def resolve_simulated(config: EngineConfig, device: SimulatedDevice, spec: ModelSpec | None = None) -> ResolvedConfig:
    """Size the KV cache of one rank. Raises `ConfigError` or `MemoryBudgetError` for what would not start."""
    spec = spec or find_simulated_spec(config.model.model)
    tp = device.tensor_parallel_size
    if not can_share(spec, tp):
        raise ConfigError(
            f"tensor_parallel_size: must divide the model's {spec.num_heads} attention heads, and divide its "
            f"{spec.num_kv_heads} KV heads or be a multiple of them (got {tp})"
        )
    max_model_len = config.model.max_model_len or spec.window
    total = device_memory_bytes(device.gpu)
    graphs = graph_bytes(spec, enforce_eager=config.device.enforce_eager) if device.budgets_graphs else 0
    memory = plan_memory(
        rank_spec(spec, tp),
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
        block_size=config.cache.block_size,
        max_model_len=max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        device_bytes=config.cache.device_memory or total,
        gpu_memory_utilization=config.cache.gpu_memory_utilization,
        attention_backend="triton",
        num_blocks=config.cache.num_blocks,
        overhead_bytes=CONTEXT_BYTES + graphs,
        weight_bytes=weight_bytes(spec, device.precision, tp),
        kv_element_bytes=device.precision.kv_bytes,
    )
    filled: dict[str, Any] = {
        "max_model_len": max_model_len,
        "num_blocks": memory.num_blocks,
        "device_memory": config.cache.device_memory or total,
        "dtype": config.model.dtype or "bfloat16",
        "kv_cache_dtype": config.cache.kv_cache_dtype or "bfloat16",
        "max_num_active_seqs": config.scheduler.max_num_active_seqs or config.scheduler.max_num_seqs,
    }
    return ResolvedConfig(
        config=config.replaced(**filled),
        spec=spec,
        memory=memory,
        device_kind="cuda",
        num_host_blocks=config.cache.swap_space // memory.bytes_per_block,
        reasons=MappingProxyType({"num_blocks": "what weights, activations and overheads leave on the GPU"}),
    )


def build_simulation(
    config: EngineConfig,
    device: SimulatedDevice,
    *,
    spec: ModelSpec | None = None,
    clock: VirtualClock | None = None,
    adjustment: Adjustment | None = None,
    operators: OperatorProfile | None = None,
    cost: StepCostModel | None = None,
    foresee: bool = True,
) -> Simulation:
    """Everything for a run on a virtual clock; takes milliseconds and loads nothing.

    `adjustment` is what a calibration on one machine found around the catalogue's prediction; `operators` replaces the
    catalogue's operator profile. `cost` of an earlier simulation of the same config, device and operators saves making
    its tables. `foresee=False` looks at every request in every step, which gives the same run more slowly: what the
    foresight is checked against.
    """
    spec = spec or find_simulated_spec(config.model.model)
    resolved = resolve_simulated(config, device, spec)
    cost = cost or _cost(config, device, spec, operators)
    clock = clock or VirtualClock()
    step_cost: StepCost = cost if adjustment is None else AdjustedCost(cost, adjustment)
    executor = _executor(step_cost, clock, resolved, device)
    scheduler = build_scheduler(resolved)
    if foresee:
        scheduler.foresee_decodes(SIMULATED_TOKEN)
    core = EngineCore(scheduler, executor, clock)
    return Simulation(core=core, clock=clock, resolved=resolved, cost=cost)


def _cost(
    config: EngineConfig, device: SimulatedDevice, spec: ModelSpec, operators: OperatorProfile | None
) -> StepCostModel:
    rank = RankOperators(
        spec=spec,
        gpu=device.gpu,
        profile=operators or profile_for(device.gpu),
        tensor_parallel_size=device.tensor_parallel_size,
        precision=device.precision,
        overheads=replace(device.overheads, is_async=config.scheduler.async_scheduling),
        factors=device.factors or factors_for(device.gpu, device.precision.weights, device.precision.kv),
        enforce_eager=config.device.enforce_eager,
    )
    return StepCostModel(rank, block_size=config.cache.block_size)


def _executor(
    cost: StepCost, clock: VirtualClock, resolved: ResolvedConfig, device: SimulatedDevice
) -> SimulatedExecutor:
    """With the memory that is left for a step, so that what dies under load on the device dies here."""
    memory, scheduler = resolved.memory, resolved.config.scheduler
    limit = find_step_limit(
        rank_spec(resolved.spec, device.tensor_parallel_size),
        memory,
        dtype="bfloat16",
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=resolved.max_model_len,
    )
    if limit is None:
        return SimulatedExecutor(cost, clock)
    return SimulatedExecutor(cost, clock, limit.max_step_tokens, lambda tokens: limit.message(tokens, memory))


def with_gpu_defaults(values: Mapping[str, Any], gpu: GpuSpec, *, is_async: bool = True) -> dict[str, Any]:
    """Engine parameters with vLLM's defaults for this GPU where they are not set; asynchronous, as on CUDA."""
    merged = {"async_scheduling": is_async, **gpu_defaults(gpu), **values}
    if values.get("max_num_seqs") and "max_num_batched_tokens" not in values:
        merged["max_num_batched_tokens"] = max(merged["max_num_batched_tokens"], values["max_num_seqs"])
    if "max_num_seqs" not in values:
        merged["max_num_seqs"] = min(merged["max_num_seqs"], merged["max_num_batched_tokens"])
    return merged


def can_share(spec: ModelSpec, tensor_parallel_size: int) -> bool:
    """vLLM's rule (`models/llama.py`): ranks hold equally many heads, and KV heads are divided or repeated evenly."""
    tp, kv_heads = tensor_parallel_size, spec.num_kv_heads
    return spec.num_heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)


def rank_spec(spec: ModelSpec, tensor_parallel_size: int) -> ModelSpec:
    """The geometry of one tensor-parallel rank; KV heads are repeated where there are fewer than ranks."""
    tp = tensor_parallel_size
    return replace(
        spec,
        num_heads=spec.num_heads // tp,
        num_kv_heads=max(spec.num_kv_heads // tp, 1),
        intermediate_size=-(-spec.intermediate_size // tp),
        expert_intermediate_size=None
        if spec.expert_intermediate_size is None
        else -(-spec.expert_intermediate_size // tp),
        vocab_size=-(-spec.vocab_size // tp),
    )


def weight_bytes(spec: ModelSpec, precision: Precision, tensor_parallel_size: int) -> int:
    """Of one rank: layers in their quantised type, embeddings, output projection and what the checkpoint leaves alone
    in bfloat16."""
    kept = Precision(weights=attention_weights(spec.name, precision.weights)).weight_bytes - precision.weight_bytes
    attention = 2 * spec.hidden_size * spec.head_dim * (spec.num_heads + spec.num_kv_heads)
    layers = spec.num_layers * (spec.num_layer_parameters * precision.weight_bytes + attention * kept)
    return int((layers + spec.num_embedding_parameters * 2.0) / tensor_parallel_size)


def uncounted(spec: ModelSpec, device: SimulatedDevice) -> tuple[str, ...]:
    """Name what neither the memory model nor the cost model counts of a deployment."""
    found, gpu, tp = [], device.gpu, device.tensor_parallel_size
    if tp > GPUS_PER_NODE and "nvl72" not in gpu.id:
        found.append(
            f"{tp} GPUs are more than the {GPUS_PER_NODE} that a node usually holds: the network between nodes is not "
            "counted, and tensor parallelism across it is far slower than predicted"
        )
    if spec.num_experts and gpu.memory_bytes <= 24 * GIB:
        found.append(
            f"graph capture of {spec.num_experts} experts is not counted: on a card of {gpu.memory_bytes // GIB} GiB "
            "it can take what is left over, or fail. Lower gpu_memory_utilization, or set enforce_eager"
        )
    if spec.name.endswith(TEXT_PART):
        found.append("only the text part is counted: the weights and activations of the other part come on top")
    return tuple(found)


def graph_bytes(spec: ModelSpec, *, enforce_eager: bool) -> int:
    """Pool of captured CUDA graphs; none in eager mode."""
    return 0 if enforce_eager else _GRAPH_BYTES_PER_LAYER * spec.num_layers


def device_memory_bytes(gpu: GpuSpec) -> int:
    """What the driver reports: nominal memory less what it and error correction keep."""
    return int(gpu.memory_bytes * (0.935 if gpu.id.startswith(("l4", "a10g", "a40")) else 0.99))
