"""Turns every "auto" of an `EngineConfig` into a value, once, and records why.

Nothing changes a configuration after this; the resolved form is what is stored with a run. No torch here: what only
torch knows (is there a GPU, how large is it) comes in as `DeviceFacts`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from engine.config import AttentionBackendName, Dtype, EngineConfig
from engine.errors import ConfigError
from engine.kv_geometry import KvGeometry
from engine.memory_model import MemoryLedger, machine_memory_bytes, plan_memory
from engine.model_spec import ModelSpec

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What resolution must know about the device."""

    kind: Literal["cpu", "cuda"]
    name: str
    """As torch spells it: `cpu`, `cuda:0`."""
    memory_bytes: int
    """Total memory the engine may plan with before `gpu_memory_utilization`."""
    memory_reason: str
    num_threads: int
    overhead_bytes: int = 0
    """Taken before the first tensor: driver context, libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """An `EngineConfig` without open ends, the model it is for, and the reasons.

    Only `max_num_partial_prefills` and `max_long_partial_prefills` may still be `None`: there it means "no limit".
    """

    config: EngineConfig
    spec: ModelSpec
    memory: MemoryLedger
    device_kind: Literal["cpu", "cuda"]
    num_host_blocks: int
    """Blocks in the host pool for swapping; 0 = none."""
    reasons: Mapping[str, str]
    """Field that was "auto" -> why it has its value now."""

    @property
    def dtype(self) -> Dtype:
        return _known(self.config.model.dtype, "dtype")

    @property
    def kv_cache_dtype(self) -> Dtype:
        return _known(self.config.cache.kv_cache_dtype, "kv_cache_dtype")

    @property
    def max_model_len(self) -> int:
        return _known(self.config.model.max_model_len, "max_model_len")

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, block 0 included."""
        return self.memory.num_blocks

    @property
    def kv_geometry(self) -> KvGeometry:
        return KvGeometry.of(self.spec, dtype=self.kv_cache_dtype, block_size=self.config.cache.block_size)


def cpu_facts() -> DeviceFacts:
    """The CPU as a device: half of the machine's or container's memory, one thread per CPU this process may use."""
    total = machine_memory_bytes()
    has_affinity = hasattr(os, "sched_getaffinity")
    return DeviceFacts(
        kind="cpu",
        name="cpu",
        memory_bytes=total // 2,
        memory_reason="half of the machine's or container's memory",
        num_threads=len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
    )


def resolve(
    config: EngineConfig,
    spec: ModelSpec,
    device: DeviceFacts | None = None,
    *,
    weight_bytes: int | None = None,
    activation_bytes: int | None = None,
) -> ResolvedConfig:
    """Fill every auto. `device` defaults to the CPU; measured bytes replace the memory model's estimates.

    Raises `ConfigError` where the configuration and the model or device do not go together, and `MemoryBudgetError`
    where memory is too small.
    """
    device = device or cpu_facts()
    if config.device.device.startswith("cuda") and device.kind != "cuda":
        raise ConfigError(f"device: {config.device.device} was asked for but no CUDA device was found. Use device: cpu")
    reasons: dict[str, str] = {}
    filled: dict[str, Any] = {}

    def fill(name: str, given: Any, value: Any, reason: str) -> Any:
        if given is not None and given != "auto":
            return given
        filled[name], reasons[name] = value, reason
        return value

    fill("device", config.device.device, device.name, f"the first {device.kind} device found")
    dtype = fill("dtype", config.model.dtype, *_auto_dtype(spec, device))
    kv_cache_dtype = fill("kv_cache_dtype", config.cache.kv_cache_dtype, dtype, "that of the model")
    max_model_len = _max_model_len(config, spec, fill)
    backend = fill("attention_backend", config.device.attention_backend, *_auto_backend(device, dtype))
    _check_backend(config.device.attention_backend, device)
    fill("threads", config.device.threads, device.num_threads, "one per CPU available to this process")
    device_bytes = fill("device_memory", config.cache.device_memory, device.memory_bytes, device.memory_reason)
    fill("max_num_active_seqs", config.scheduler.max_num_active_seqs, config.scheduler.max_num_seqs, "max_num_seqs")
    memory = plan_memory(
        spec,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        block_size=config.cache.block_size,
        max_model_len=max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        device_bytes=device_bytes,
        gpu_memory_utilization=config.cache.gpu_memory_utilization,
        attention_backend=backend,
        num_blocks=config.cache.num_blocks,
        overhead_bytes=device.overhead_bytes,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
    )
    fill("num_blocks", config.cache.num_blocks, memory.num_blocks, "what weights and activations leave")
    return ResolvedConfig(
        config=config.replaced(**filled),
        spec=spec,
        memory=memory,
        device_kind=device.kind,
        num_host_blocks=config.cache.swap_space // memory.bytes_per_block,
        reasons=MappingProxyType(reasons),
    )


def _auto_dtype(spec: ModelSpec, device: DeviceFacts) -> tuple[Dtype, str]:
    if device.kind == "cpu" and spec.dtype == "float16":
        return "float32", "the checkpoint's float16 has no fast path on the CPU, and float32 holds every value of it"
    return spec.dtype, "that of the checkpoint"


def _max_model_len(config: EngineConfig, spec: ModelSpec, fill: Any) -> int:
    limit = spec.max_runnable_len
    is_window = limit < spec.max_position
    length: int = fill(
        "max_model_len",
        config.model.max_model_len,
        limit,
        "the model's sliding window: longer sequences would need windowed attention"
        if is_window
        else "the model's own",
    )
    if length > limit:
        what = "sliding window" if is_window else "positions"
        raise ConfigError(f"max_model_len: must be at most {limit}, the model's {what} (got {length}). Lower it")
    return length


def _auto_backend(device: DeviceFacts, dtype: Dtype) -> tuple[AttentionBackendName, str]:
    if device.kind == "cuda" and dtype == "float64":
        return "torch_reference", "the triton backend computes in float32"
    if device.kind == "cuda":
        return "triton", "the device is a GPU"
    return "cpu", "the device is the CPU"


def _check_backend(given: AttentionBackendName, device: DeviceFacts) -> None:
    if given == "triton" and device.kind == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(
            "attention_backend: triton needs a CUDA device (found cpu). Use cpu, or TRITON_INTERPRET=1 to step through"
        )
    if given == "cpu" and device.kind == "cuda":
        raise ConfigError("attention_backend: cpu cannot run on a CUDA device. Use triton or torch_reference")


def _known(value: _T | None, name: str) -> _T:
    if value is None:
        raise ConfigError(f"{name}: is not resolved. Build a ResolvedConfig with resolve()")
    return value
