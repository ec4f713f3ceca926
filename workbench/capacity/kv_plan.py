"""The memory of a deployment before it starts: the door to the functions that engine and simulation size with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv_geometry import KvGeometry
from engine.memory_model import ActivationEstimate, MemoryLedger, estimate_activation
from engine.model_spec import ModelSpec
from engine.simulation import (
    CONTEXT_BYTES,
    SimulatedDevice,
    can_share,
    graph_bytes,
    rank_spec,
    resolve_simulated,
    with_gpu_defaults,
)
from workbench.capacity.concurrency import max_concurrency

_SMALLEST_CACHE = 2
"""Blocks without which no engine starts; block 0 is never used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model on GPUs, with the engine parameters that its memory depends on."""

    spec: ModelSpec
    device: SimulatedDevice
    engine: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Engine parameters by name; vLLM's defaults for the GPU fill the rest."""

    def config(self, **values: Any) -> EngineConfig:
        """Raises `ConfigError` for a parameter that cannot be."""
        return EngineConfig.from_dict(with_gpu_defaults({**self.engine, **values}, self.device.gpu))

    def can_span(self, num_gpus: int) -> bool:
        """The model's heads can be shared among so many."""
        return can_share(self.spec, num_gpus)

    def with_engine(self, **values: Any) -> Deployment:
        return replace(self, engine=MappingProxyType({**self.engine, **values}))

    def with_device(self, **values: Any) -> Deployment:
        return replace(self, device=replace(self.device, **values))

    def with_precision(self, **values: str) -> Deployment:
        return self.with_device(precision=replace(self.device.precision, **values))


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPlan:
    """Where one GPU's memory goes, and what the KV cache holds. Bytes are per GPU (tensor-parallel rank)."""

    geometry: KvGeometry
    max_model_len: int
    gpu_memory_utilization: float
    num_blocks: int
    """0 where nothing is left for the cache."""
    weight_bytes: int
    activation: ActivationEstimate
    graph_bytes: int
    context_bytes: int
    device_bytes: int
    """What the driver reports."""
    budget_bytes: int
    """`device_bytes x gpu_memory_utilization`."""
    num_gpus: int
    given_bytes: int | None
    """The cache's size where it was given in bytes."""
    overflows: bool
    """The cache was given in bytes, and the device does not hold it beside weights, activations and overheads."""
    is_sized_directly: bool
    """The cache's size was given, in bytes or blocks; the other lines are then for information."""
    problem: str | None
    """Why this would not start, in the engine's own words; None where it starts."""

    @property
    def starts(self) -> bool:
        return self.problem is None

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.geometry.block_size

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.geometry.bytes_per_block

    @property
    def available_bytes(self) -> int:
        """What the cache may take: its blocks and a rest smaller than one."""
        if self.given_bytes is not None:
            return self.given_bytes
        return self.kv_bytes + (0 if self.is_sized_directly else max(0, self.ledger["free"]))

    @property
    def longest_len(self) -> int:
        """Longest `max_model_len` that this cache starts with; 0 for none. One block is never used."""
        return max(0, self.num_blocks - 1) * self.geometry.block_size

    @property
    def ledger(self) -> dict[str, int]:
        """Bytes by use. They add up to `budget_bytes` unless the cache was sized directly; `free` is negative where
        the other lines take more than there is."""
        layers = max(self.activation.attention_bytes, self.activation.mlp_bytes)
        lines = {
            "weights": self.weight_bytes,
            "kv": self.kv_bytes,
            "activation": layers,
            "logits": max(0, self.activation.logits_bytes - layers),  # the phases of a step do not overlap
            "graphs": self.graph_bytes,
            "context": self.context_bytes,
        }
        return {**lines, "free": self.budget_bytes - sum(lines.values())}

    def concurrency(self, num_tokens: int) -> float:
        """Requests of `num_tokens` that fit at once."""
        return max_concurrency(self.num_blocks, num_tokens, self.geometry.block_size)


def plan_kv(deployment: Deployment, *, max_model_len: int, kv_bytes: int | None = None, **engine: Any) -> KvPlan:
    """Size the cache as the engine does at start; what would not start comes back with its `problem`.

    `kv_bytes` sizes the cache of one GPU directly; `engine` are parameters on top of the deployment's. Raises
    `ConfigError` for what is no question of memory: a parameter out of range, a tensor-parallel size that divides no
    attention heads.
    """
    deployment = deployment.with_engine(**engine, max_model_len=max_model_len)
    config, spec, device = deployment.config(), deployment.spec, deployment.device
    # A cache for one request always starts: its ledger has the lines of one that does not.
    needed = -(-max_model_len // config.cache.block_size) + 1
    smallest = deployment.config(num_blocks=max(_SMALLEST_CACHE, needed))
    sized = resolve_simulated(smallest, device, spec).memory
    rank = rank_spec(spec, device.tensor_parallel_size)
    geometry = replace(
        KvGeometry.of(rank, dtype="bfloat16", block_size=config.cache.block_size),
        element_bytes=int(device.precision.kv_bytes),
    )
    if geometry.bytes_per_block != sized.bytes_per_block:
        raise AssertionError("the plan's KV geometry is not the simulation's")
    num_blocks, problem = _start(deployment, geometry, sized, kv_bytes)
    return KvPlan(
        geometry=geometry,
        max_model_len=max_model_len,
        gpu_memory_utilization=config.cache.gpu_memory_utilization,
        num_blocks=num_blocks,
        weight_bytes=sized.weight_bytes,
        activation=estimate_activation(
            rank,
            dtype="bfloat16",
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=max_model_len,
            attention_backend="triton",
        ),
        graph_bytes=graph_bytes(spec, enforce_eager=config.device.enforce_eager),
        context_bytes=CONTEXT_BYTES,
        device_bytes=sized.device_bytes,
        budget_bytes=sized.budget_bytes,
        num_gpus=device.tensor_parallel_size,
        given_bytes=kv_bytes,
        overflows=kv_bytes is not None and _overflow(kv_bytes, geometry, sized) is not None,
        is_sized_directly=kv_bytes is not None or "num_blocks" in deployment.engine,
        problem=problem,
    )


def _start(
    deployment: Deployment, geometry: KvGeometry, sized: MemoryLedger, kv_bytes: int | None
) -> tuple[int, str | None]:
    """Blocks, and why the engine refuses them."""
    given = {} if kv_bytes is None else {"num_blocks": geometry.num_blocks(kv_bytes)}
    if given.get("num_blocks", _SMALLEST_CACHE) < _SMALLEST_CACHE:
        need = _SMALLEST_CACHE * geometry.bytes_per_block
        return given["num_blocks"], f"No room for a KV cache: {kv_bytes} bytes are less than two blocks ({need} bytes)."
    config = deployment.config(**given)
    overflow = None if kv_bytes is None else _overflow(kv_bytes, geometry, sized)
    try:
        memory = resolve_simulated(config, deployment.device, deployment.spec).memory
    except ConfigError as error:
        left = sized.budget_bytes - sized.weight_bytes - sized.activation_bytes - sized.overhead_bytes
        problems = [*([] if overflow is None else [overflow]), str(error)]
        return config.cache.num_blocks or geometry.num_blocks(left), "\n".join(problems)
    return memory.num_blocks, overflow


def _overflow(kv_bytes: int, geometry: KvGeometry, sized: MemoryLedger) -> str | None:
    """Why a cache of a given size is not on the device beside the rest; None where it is."""
    room = sized.device_bytes - sized.weight_bytes - sized.activation_bytes - sized.overhead_bytes
    if geometry.num_blocks(kv_bytes) * geometry.bytes_per_block <= room:
        return None
    rest = sized.activation_bytes + sized.overhead_bytes
    text = (
        f"A KV cache of {kv_bytes} bytes beside weights of {sized.weight_bytes} and {rest} of activations and "
        f"overheads needs {kv_bytes + sized.device_bytes - room} bytes, more than the GPU's {sized.device_bytes}.\n"
    )
    if room > 0:
        return f"{text}The cache may take at most {room} bytes."
    return f"{text}No cache fits beside these weights. Quantise them (--dtype), or share them among GPUs (--tp)."


def utilization_for(plan: KvPlan, num_blocks: int) -> float:
    """`gpu_memory_utilization` that leaves room for `num_blocks`, rounded up to hundredths; may exceed 1."""
    ledger = plan.ledger
    used = plan.budget_bytes - ledger["free"] - ledger["kv"]
    return math.ceil(100 * (used + num_blocks * plan.geometry.bytes_per_block) / plan.device_bytes) / 100
