"""Where the device's memory goes, as arithmetic that runs before anything is loaded.

    device memory x gpu_memory_utilization
      - weights - peak activation (largest step) - overhead (context, captured graphs)
      = KV cache

`worker.memory` measures the same peak with a profile run; a test holds the two together. The tuner's feasibility check
calls these functions, so an estimate too low here is a crash there: where torch's behaviour varies, take the larger.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import GIB, MIB, AttentionBackendName, Dtype
from engine.errors import ConfigError, MemoryBudgetError
from engine.kv_geometry import KvGeometry
from engine.model_spec import DTYPE_BYTES, ModelSpec

_FLOAT32 = 4
_SCRATCH_BYTES = MIB
"""Per-thread buffers of fused attention; under 1 MiB on two threads, measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationEstimate:
    """Bytes of temporary tensors in the largest step. Phases do not overlap, so the peak is their maximum."""

    attention_bytes: int
    """Residual, projections, rotary temporaries and the backend's workspace."""
    mlp_bytes: int
    """Residual, gate, up and product."""
    logits_bytes: int
    """Rows that sample x vocabulary, and the sampler's copies of a row."""

    @property
    def peak_bytes(self) -> int:
        return max(self.attention_bytes, self.mlp_bytes, self.logits_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLedger:
    """The whole arithmetic behind a number of blocks, in bytes."""

    device_bytes: int
    gpu_memory_utilization: float
    weight_bytes: int
    activation_bytes: int
    overhead_bytes: int
    kv_bytes: int
    """Of the pool as allocated: `num_blocks x bytes_per_block`."""
    bytes_per_block: int
    num_blocks: int
    """Block 0, which is never used, included."""
    is_override: bool
    """`num_blocks` was given, not derived; the other lines are then for information."""

    @property
    def budget_bytes(self) -> int:
        """What the engine may use in total."""
        return math.ceil(self.device_bytes * self.gpu_memory_utilization)


def estimate_activation(
    spec: ModelSpec,
    *,
    dtype: Dtype,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
    attention_backend: AttentionBackendName = "cpu",
) -> ActivationEstimate:
    """Peak of temporary tensors in a step of `max_num_batched_tokens` tokens.

    Counts the tensors that `layers` and `attention` hold at one time; the worst step has one chunk as long as allowed
    that ends at `max_model_len`.
    """
    tokens, element = max_num_batched_tokens, DTYPE_BYTES[dtype]
    hidden = tokens * spec.hidden_size
    q = tokens * spec.num_heads * spec.head_dim
    kv = tokens * spec.num_kv_heads * spec.head_dim
    projected = 2 * hidden + (q + 2 * kv) + (q + kv)  # residual, normed, fused projection, rotated copy
    workspace = _workspace_bytes(spec, element, tokens, max_model_len, attention_backend)
    rotary = (q + kv) * element
    # Held all through the step: cosines and sines, index arrays, and torch's own scratch.
    held = 2 * tokens * spec.head_dim * element + 4 * tokens * 8 + _SCRATCH_BYTES
    mlp = 3 * hidden + 3 * tokens * spec.intermediate_size  # residual, normed, output; gate and up, activated gate
    # RMSNorm works in float32 whatever the element type: the copy, its square and the normed copy.
    norm_bytes = hidden * element + 3 * hidden * _FLOAT32
    rows = min(max_num_seqs, tokens)
    # The sampler takes non-greedy rows one at a time, in float64.
    logits_bytes = hidden * element + rows * (spec.hidden_size + spec.vocab_size) * element + 6 * spec.vocab_size * 8
    return ActivationEstimate(
        attention_bytes=held + projected * element + max(rotary, q * element + workspace),
        mlp_bytes=held + max(mlp * element, norm_bytes),
        logits_bytes=held + logits_bytes,
    )


UNPROFILED_BYTES = 400 * MIB
"""Allocated after the profile run, outside of the budget: workspaces of attention and of cuBLAS (FlashInfer's alone is
394 MiB), kernels loaded at their first use."""
FRAGMENTATION_SHARE = 2.2
"""What a step may hold beyond its tensors, as a multiple of them: blocks that the allocator keeps of earlier steps'
shapes and that this step's do not fit into. The profile run measures tensors, not blocks. Chosen, not measured: so that
two 8k prompts in one step end an 8B model on 80 GB at utilisation 0.95 and not at 0.88, as practitioners report.
The size is that of a published death under load (vLLM issue 9290: 79.1 of 79.2 GiB in use at utilisation 0.941, so
4.6 GiB over the budget), but that report counts only 0.6 GiB as unusable blocks and 6.9 GiB outside of torch.
"""
FRAGMENTATION_BYTES = int(4.5 * GIB)
"""Most that this comes to. Chosen: without it, a published run with a budget of 30,720 tokens at utilisation 0.9 would
die here, and it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimit:
    """The largest step that a GPU survives, and why."""

    max_step_tokens: int
    max_safe_budget: int
    """Largest `max_num_batched_tokens` with which every step survives; 0 = none."""
    free_bytes: int
    """Left for a step: the device less weights, overhead and KV cache."""

    def message(self, num_tokens: int, memory: MemoryLedger) -> str:
        """What killed a step of `num_tokens`, and what to do."""
        budget = f" or max_num_batched_tokens to {self.max_safe_budget}" if self.max_safe_budget else ""
        return (
            f"out of memory in a step of {num_tokens} tokens: gpu_memory_utilization {memory.gpu_memory_utilization:g} "
            f"leaves {_size(self.free_bytes)} beside weights, graphs and KV cache, enough for steps of up to "
            f"{self.max_step_tokens} tokens (activations, blocks that the allocator cannot reuse, workspaces). "
            f"Lower gpu_memory_utilization{budget}"
        )


def find_step_limit(
    spec: ModelSpec,
    memory: MemoryLedger,
    *,
    dtype: Dtype,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
) -> StepLimit | None:
    """The step that dies under load although the engine started; None where every step survives.

    The engine's budget holds one profiled peak; a step under load needs its own, blocks that cannot be reused
    (`FRAGMENTATION_SHARE`, `FRAGMENTATION_BYTES`) and `UNPROFILED_BYTES`. Also None where `num_blocks` was given: what
    is left is then not derived from the device.
    """
    if memory.is_override:
        return None
    free = memory.device_bytes - memory.weight_bytes - memory.overhead_bytes - memory.kv_bytes
    beside = memory.device_bytes - memory.budget_bytes

    def peak(num_tokens: int) -> int:
        return estimate_activation(
            spec,
            dtype=dtype,
            max_num_batched_tokens=num_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            attention_backend="triton",
        ).peak_bytes

    def unusable(num_tokens: int) -> float:
        return min(peak(num_tokens) * FRAGMENTATION_SHARE, FRAGMENTATION_BYTES)

    def survives(num_tokens: int) -> bool:
        return peak(num_tokens) + unusable(num_tokens) + UNPROFILED_BYTES <= free

    def is_safe(budget: int) -> bool:  # its own peak is then what the KV cache leaves room for
        return unusable(budget) + UNPROFILED_BYTES <= beside

    if survives(max_num_batched_tokens):
        return None
    return StepLimit(
        max_step_tokens=_largest(survives, max_num_batched_tokens),
        max_safe_budget=_largest(is_safe, max_num_batched_tokens),
        free_bytes=free,
    )


def _largest(holds: Callable[[int], bool], end: int) -> int:
    """The largest number under `end` for which a rule holds that small numbers keep; 0 if none does."""
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _workspace_bytes(
    spec: ModelSpec, element: int, tokens: int, max_model_len: int, backend: AttentionBackendName
) -> int:
    """What a backend allocates in a call, beyond its result."""
    chunk, kv_size = min(tokens, max_model_len), spec.num_kv_heads * spec.head_dim
    gathered = 3 * max_model_len * kv_size * element  # keys, and values before and after they are put in a row
    if backend == "triton":
        return 0
    if backend == "torch_reference":
        repeated = 2 * max_model_len * spec.num_heads * spec.head_dim
        scores = 3 * spec.num_heads * chunk * max_model_len  # raw, masked and normalised
        return gathered + (repeated + scores) * max(element, _FLOAT32) + 2 * chunk * max_model_len
    # Per chunk: its result, and the mask that torch makes of ours; ours are kept for all chunks of the step.
    result = chunk * spec.num_heads * spec.head_dim * element
    # CPUs with AMX attend in bfloat16 over copies of keys and values in the order that their matrix units read.
    packed = 2 * max_model_len * spec.num_heads * spec.head_dim * element if element == 2 else 0
    return gathered + result + packed + chunk * max_model_len * element + tokens * max_model_len


def plan_memory(
    spec: ModelSpec,
    *,
    dtype: Dtype,
    kv_cache_dtype: Dtype,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    device_bytes: int,
    gpu_memory_utilization: float,
    attention_backend: AttentionBackendName = "cpu",
    num_blocks: int | None = None,
    overhead_bytes: int = 0,
    weight_bytes: int | None = None,
    activation_bytes: int | None = None,
    kv_element_bytes: float | None = None,
) -> MemoryLedger:
    """Size the KV cache. `weight_bytes` and `activation_bytes` replace the estimates where they were measured,
    `kv_element_bytes` the size of a KV element where the engine has no such type (planning: fp8).

    Raises `MemoryBudgetError` if weights and activations leave no room for two blocks, and `ConfigError` if the usable
    blocks (all but block 0) cannot hold one request of `max_model_len`.
    """
    geometry = KvGeometry.of(spec, dtype=kv_cache_dtype, block_size=block_size)
    if kv_element_bytes is not None:
        geometry = replace(geometry, element_bytes=int(kv_element_bytes))
    weights = spec.weight_bytes(dtype) if weight_bytes is None else weight_bytes
    if activation_bytes is None:
        activation_bytes = estimate_activation(
            spec,
            dtype=dtype,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            attention_backend=attention_backend,
        ).peak_bytes
    budget = math.ceil(device_bytes * gpu_memory_utilization)
    available = budget - weights - activation_bytes - overhead_bytes
    if num_blocks is None and geometry.num_blocks(available) < 2:
        needed = weights + activation_bytes + overhead_bytes + 2 * geometry.bytes_per_block
        raise MemoryBudgetError(
            f"No room for a KV cache: {_size(device_bytes)} x gpu_memory_utilization {gpu_memory_utilization:g} = "
            f"{_size(budget)}, less weights {_size(weights)}, peak activation {_size(activation_bytes)} "
            f"and overhead {_size(overhead_bytes)} leaves {_size(available)}; one block takes "
            f"{_size(geometry.bytes_per_block)}.\n"
            f"Raise device_memory or gpu_memory_utilization ({_size(needed)} is needed), lower max_num_batched_tokens "
            f"or max_num_seqs, or take a smaller model or dtype."
        )
    blocks = geometry.num_blocks(available) if num_blocks is None else num_blocks
    _check_one_request_fits(geometry, blocks, max_model_len, is_override=num_blocks is not None)
    return MemoryLedger(
        device_bytes=device_bytes,
        gpu_memory_utilization=gpu_memory_utilization,
        weight_bytes=weights,
        activation_bytes=activation_bytes,
        overhead_bytes=overhead_bytes,
        kv_bytes=blocks * geometry.bytes_per_block,
        bytes_per_block=geometry.bytes_per_block,
        num_blocks=blocks,
        is_override=num_blocks is not None,
    )


def _check_one_request_fits(geometry: KvGeometry, num_blocks: int, max_model_len: int, *, is_override: bool) -> None:
    """vLLM's rule: `num_blocks - 1` blocks must hold `max_model_len` tokens."""
    usable = num_blocks - 1
    needed = geometry.num_blocks_for(max_model_len)
    if needed <= usable:
        return
    remedy = "Raise num_blocks" if is_override else "Raise gpu_memory_utilization or device_memory"
    raise ConfigError(
        f"max_model_len: one request of {max_model_len} tokens needs {needed} KV blocks "
        f"({_size(needed * geometry.bytes_per_block)}), more than the {usable} usable blocks "
        f"({_size(usable * geometry.bytes_per_block)}).\n"
        f"The estimated maximum model length is {usable * geometry.block_size}. {remedy}, or lower max_model_len."
    )


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """Memory this process may use: the machine's, or its container's limit (cgroup v2 or v1) where that is less.

    `root` is where /proc and /sys are found. Raises `ConfigError` where neither can be read.
    """
    limits = [_meminfo_bytes(root / "proc/meminfo")]
    limits += [_limit_bytes(path) for path in _cgroup_limit_files(root)]
    known = [limit for limit in limits if limit is not None]
    if not known:
        raise ConfigError("device_memory: cannot be found out on this system. Set it, for example to 8GiB")
    return min(known)


def _cgroup_limit_files(root: Path) -> list[Path]:
    """Limit files of this process's group and of all groups above it: the tightest counts."""
    base = root / "sys/fs/cgroup"
    files = [base / "memory.max", base / "memory/memory.limit_in_bytes"]
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return files
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        group = Path(path.lstrip("/"))
        for part in (group, *group.parents):
            if controllers == "":
                files.append(base / part / "memory.max")
            elif "memory" in controllers.split(","):
                files.append(base / "memory" / part / "memory.limit_in_bytes")
    return files


def _limit_bytes(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    # v2 writes "max" and v1 a number near 2^63 for "no limit".
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _meminfo_bytes(path: Path) -> int | None:
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:  # macOS has no /proc
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _size(num_bytes: int) -> str:
    if abs(num_bytes) >= GIB // 10:
        return f"{num_bytes / GIB:.2f} GiB"
    return f"{num_bytes / MIB:.1f} MiB" if abs(num_bytes) >= MIB // 2 else f"{num_bytes / 1024:.1f} KiB"
