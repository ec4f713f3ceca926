"""What a user may set on the engine: declared once here, resolved once in `engine.resolve`, then never changed.

Four frozen slices make one `EngineConfig`. `None` means "auto": `engine.resolve` replaces it by a value and records
why. Field names are unique over all slices, so that a flat mapping (a scenario's `engine:` section, a trial's
parameters) can be routed to them by `EngineConfig.from_dict`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from engine.errors import ConfigError, suggest

Dtype = Literal["float64", "float32", "bfloat16", "float16"]
SchedulingPolicy = Literal["fcfs", "priority"]
PreemptionMode = Literal["recompute", "swap"]
Batching = Literal["continuous", "dynamic", "static"]
KvPolicy = Literal["paged", "contiguous"]
AttentionBackendName = Literal["auto", "torch_reference", "cpu", "triton"]

GIB = 1024**3
MIB = 1024**2
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1024, "MIB": MIB, "GIB": GIB, "TIB": 1024**4}


def parse_bytes(value: int | float | str) -> int:
    """Bytes from 268435456, "256MiB" or "1.5 GB"."""
    if isinstance(value, bool):
        raise ConfigError(f"a size must be a number of bytes or a text like 256MiB (got {value!r})")
    if isinstance(value, (int, float)):
        size: float = value
    elif not isinstance(value, str):
        raise ConfigError(f"a size must be a number of bytes or a text like 256MiB (got {value!r})")
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if not match or match[2].upper() not in _UNITS:
            raise ConfigError(f"a size must be a number of bytes or a text like 256MiB (got {value!r})")
        size = float(match[1]) * _UNITS[match[2].upper()]
    if not 0 < size < 2**63:
        raise ConfigError(f"a size must be positive (got {value!r})")
    return int(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, in which precision."""

    model: str = "tiny"
    """Name of a built-in seeded model (`tiny`, ...), a local Hugging Face directory, a GGUF file or a hub id."""
    dtype: Dtype | None = None
    """Element type of weights and activations. Auto: the checkpoint's, float32 for the seeded models."""
    max_model_len: int | None = None
    """Longest prompt + output, tokens, >= 1. Auto: the model's own limit."""
    seed: int = 0
    """Seed of built-in models' weights and of unseeded sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16
    """Token positions per block, >= 1."""
    num_blocks: int | None = None
    """Blocks in the pool, block 0 (never used) included, >= 2. Auto: from device memory."""
    gpu_memory_utilization: float = 0.92
    """Share of total device memory the engine may use, weights and activations included, in (0, 1]."""
    device_memory: int | None = None
    """Total memory of the device, bytes. Auto: the GPU's; on the CPU half of the machine's or container's limit."""
    enable_prefix_caching: bool = True
    """Share full blocks between requests with equal prefixes."""
    kv_cache_dtype: Dtype | None = None
    """Element type of the KV cache. Auto: that of the model."""
    kv_policy: KvPolicy = "paged"
    """`paged`: blocks on demand. `contiguous`: `max_model_len` positions reserved at admission (a baseline)."""
    swap_space: int = 0
    """Host memory for swapped-out blocks, bytes, >= 0; used with `preemption: swap`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What runs in a step. Defaults are those of vLLM 0.32."""

    max_num_seqs: int = 128
    """Most requests running at once, >= 1."""
    max_num_batched_tokens: int = 2048
    """Most tokens per step, prefill and decode together, >= `max_num_seqs`."""
    enable_chunked_prefill: bool = True
    """Allow one prompt to be computed over several steps."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one request's prefill per step while others are there; 0 = no limit."""
    long_prefill_token_threshold_adaptive: bool = False
    """Raise the threshold to an equal share of the budget when few requests are there."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """Order of the waiting queue; with `priority`, lower numbers are more urgent."""
    watermark: float = 0.0
    """Fraction of all blocks kept free at admission, in [0, 1)."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only if its whole known sequence would fit now (a check, not a reservation)."""
    max_num_active_seqs: int | None = None
    """Cap on running requests below `max_num_seqs`. Auto: `max_num_seqs`."""
    async_scheduling: bool = False
    """Schedule step k before the output of step k-1 is known: two batches in flight."""
    preemption: PreemptionMode = "recompute"
    """What a preempted request loses: everything but its cached prefix, or nothing (blocks go to host memory)."""
    batching: Batching = "continuous"
    """`continuous`: admit in every step. `dynamic`, `static`: batches run to their end (baselines)."""
    scheduler_delay_factor: float = 0.0
    """Wait this many times the last prompt step's duration before admitting again, >= 0; 0 = never wait."""
    max_num_partial_prefills: int | None = None
    """Most prompts that may be partly computed at once, >= 1. Auto: no limit."""
    max_long_partial_prefills: int | None = None
    """Of these, most with more than `long_prefill_token_threshold` tokens to go, >= 1. Auto: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Where and how the forward pass runs."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    attention_backend: AttentionBackendName = "auto"
    """`auto` takes `triton` on CUDA and `cpu` on the CPU (`torch_reference` where a backend cannot run)."""
    enforce_eager: bool = False
    """Never capture CUDA graphs."""
    threads: int | None = None
    """CPU threads of the forward pass, >= 1. Auto: torch's own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that can be set on an engine."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineConfig:
        """Route a flat mapping of field names to their slices; sizes may be texts such as "256MiB".

        Raises `ConfigError` for an unknown name (with the nearest known one), a wrong type or a value out of range.
        """
        slices: dict[str, dict[str, Any]] = {name: {} for name in _SLICES}
        for name, value in values.items():
            if name not in _SLICE_OF_FIELD:
                raise ConfigError(f"{name}: not an engine parameter. {suggest(name, _SLICE_OF_FIELD)}")
            slices[_SLICE_OF_FIELD[name]][name] = _checked(name, value)
        config = cls(**{name: _SLICES[name](**slices[name]) for name in _SLICES})
        check(config)
        return config

    def to_dict(self) -> dict[str, Any]:
        """The flat mapping: field name -> value, slices in order."""
        return {key: value for name in _SLICES for key, value in dataclasses.asdict(getattr(self, name)).items()}

    def replaced(self, **changes: Any) -> EngineConfig:
        """A copy with some fields changed, by flat name."""
        return EngineConfig.from_dict(self.to_dict() | changes)


_SLICES: dict[str, type[Any]] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "device": DeviceConfig,
}
_SLICE_OF_FIELD = {f.name: name for name, cls in _SLICES.items() for f in dataclasses.fields(cls)}
_TYPE_OF_FIELD = {key: hint for cls in _SLICES.values() for key, hint in get_type_hints(cls).items()}
_SIZES = ("device_memory", "swap_space")
_AT_LEAST = {
    "max_model_len": 1,
    "block_size": 1,
    "num_blocks": 2,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "long_prefill_token_threshold": 0,
    "max_num_active_seqs": 1,
    "scheduler_delay_factor": 0,
    "max_num_partial_prefills": 1,
    "max_long_partial_prefills": 1,
    "threads": 1,
    "swap_space": 0,
    "seed": 0,
}


_AT_MOST = {
    "max_model_len": 2**31,
    "block_size": 2**20,
    "num_blocks": 2 * 10**7,
    "max_num_seqs": 2**20,
    "max_num_batched_tokens": 2**31,
    "long_prefill_token_threshold": 2**31,
    "threads": 1024,
    "seed": 2**63 - 1,
}
"""Beyond any hardware: larger values are slips that would exhaust memory or crash native code."""


def engine_field_names() -> tuple[str, ...]:
    """All flat field names, in order of declaration."""
    return tuple(_SLICE_OF_FIELD)


def _checked(name: str, value: Any) -> Any:
    """`value` for field `name` if its type and range are right."""
    hint = _TYPE_OF_FIELD[name]
    options = get_args(hint) if type(None) in get_args(hint) else (hint,)
    if value is None and type(None) in options:
        return None
    if name in _SIZES:
        return 0 if value == 0 and not isinstance(value, bool) else parse_bytes(value)
    for option in options:
        if get_origin(option) is Literal:
            if value in get_args(option):
                return value
            raise ConfigError(f"{name}: must be one of {', '.join(get_args(option))} (got {value!r})")
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            value = float(value)
            break
        if option is int and isinstance(value, float) and value.is_integer():
            value = int(value)
            break
        if isinstance(value, option) and (option is bool or not isinstance(value, bool)):
            break
    else:
        wanted = next(option for option in options if option is not type(None))
        raise ConfigError(f"{name}: must be {_TYPE_WORDS.get(wanted, wanted.__name__)} (got {value!r})")
    if name in _AT_LEAST and not value >= _AT_LEAST[name]:
        raise ConfigError(f"{name}: must be at least {_AT_LEAST[name]} (got {value!r})")
    if name in _AT_MOST and value > _AT_MOST[name]:
        raise ConfigError(f"{name}: must be at most {_AT_MOST[name]} (got {value!r})")
    if name == "gpu_memory_utilization" and not 0.0 < value <= 1.0:
        raise ConfigError(f"{name}: must be over 0 and at most 1 (got {value!r})")
    if name == "watermark" and not 0.0 <= value < 1.0:
        raise ConfigError(f"{name}: must be at least 0 and under 1 (got {value!r})")
    return value


_TYPE_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def check(config: EngineConfig) -> None:
    """Raise `ConfigError` where fields clash (the rules of vLLM's `verify_max_model_len`)."""
    scheduler, cache, max_model_len = config.scheduler, config.cache, config.model.max_model_len
    if scheduler.max_num_batched_tokens < scheduler.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens: must be at least max_num_seqs (got {scheduler.max_num_batched_tokens} < "
            f"{scheduler.max_num_seqs}). Raise the budget or lower max_num_seqs"
        )
    if scheduler.max_num_active_seqs is not None and scheduler.max_num_active_seqs > scheduler.max_num_seqs:
        raise ConfigError(
            f"max_num_active_seqs: must be at most max_num_seqs (got {scheduler.max_num_active_seqs} > "
            f"{scheduler.max_num_seqs})"
        )
    if max_model_len is not None:
        if not scheduler.enable_chunked_prefill and scheduler.max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens: must be at least max_model_len when chunked prefill is off (got "
                f"{scheduler.max_num_batched_tokens} < {max_model_len}). Raise it or enable chunked prefill"
            )
        if scheduler.long_prefill_token_threshold > max_model_len:
            raise ConfigError(
                f"long_prefill_token_threshold: must be at most max_model_len (got "
                f"{scheduler.long_prefill_token_threshold} > {max_model_len})"
            )
    if scheduler.preemption == "swap" and cache.swap_space == 0:
        raise ConfigError("swap_space: must be over 0 with preemption: swap (got 0). Set it, for example to 1GiB")
