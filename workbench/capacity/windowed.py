"""KV memory of models whose layers see a sliding window, as vLLM's hybrid cache manager counts it.

Layers of one kind form groups of equal size that share one pool; a block holds one group's layers. A request needs
blocks for its whole length in a full-attention group, and for the window and the step in a windowed one
(vLLM `v1/core/kv_cache_utils.py`, `SlidingWindowSpec.max_memory_usage_bytes`).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kv_geometry import KvGeometry
from engine.model_spec import ModelSpec
from workbench.capacity.kv_plan import KvPlan

_ALTERNATING = frozenset({"gemma2"})
"""Families in which every second layer is windowed; in the others with a window all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedPlan:
    """The same bytes under window-aware accounting."""

    window: int
    num_windowed_layers: int
    num_groups: int
    num_blocks: int
    """Each holds the layers of one group."""
    kv_tokens: int
    """As vLLM prints them: blocks / groups x block size."""
    blocks_per_request: int
    """Of `max_model_len`, over all groups."""
    concurrency: float


def plan_windowed(spec: ModelSpec, plan: KvPlan, max_num_batched_tokens: int) -> WindowedPlan | None:
    """None for a model without a window."""
    if spec.sliding_window is None:
        return None
    windowed = spec.num_layers // 2 if spec.family in _ALTERNATING else spec.num_layers
    full = spec.num_layers - windowed
    num_groups = 2 if full else 1
    geometry: KvGeometry = plan.geometry
    # Groups are of equal size: the layers of both kinds are as many (every second one), or of one kind.
    num_blocks = plan.available_bytes * num_groups // geometry.bytes_per_block
    seen = min(spec.sliding_window - 1 + max_num_batched_tokens, plan.max_model_len)
    per_request = geometry.num_blocks_for(seen) + 1 + (geometry.num_blocks_for(plan.max_model_len) if full else 0)
    return WindowedPlan(
        window=spec.sliding_window,
        num_windowed_layers=windowed,
        num_groups=num_groups,
        num_blocks=num_blocks,
        kv_tokens=num_blocks // num_groups * geometry.block_size,
        blocks_per_request=per_request,
        concurrency=num_blocks * 100 // per_request / 100,
    )
