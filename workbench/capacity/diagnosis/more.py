"""Changes that several rules offer: a larger cache, more replicas."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.capacity.diagnosis.evidence import Evidence, Limits
from workbench.capacity.diagnosis.finding import Change

_SAFE_UTILIZATION = 0.92
_HIGHEST_UTILIZATION = 0.95


def more_kv(limits: Limits) -> Iterator[Change]:
    """Offer what enlarges the KV cache, of what is not in force yet."""
    if limits.is_num_blocks_stated and limits.num_blocks is not None:
        yield Change(parameter="num_blocks", value=2 * limits.num_blocks, note="the scenario's own size, doubled")
        return
    if limits.device_memory is not None:
        size = f"{2 * limits.device_memory / 1024**2:.0f}MiB"
        yield Change(parameter="device_memory", value=size, note="the scenario's own limit, doubled")
    utilization = limits.gpu_memory_utilization
    if utilization is None or utilization < 0.9:
        yield Change(parameter="gpu_memory_utilization", value=_higher(utilization))
    if limits.device_memory is None:
        yield Change(parameter="kv_cache_dtype", value="fp8", note="twice the tokens in the same memory")
        size_now = limits.tensor_parallel_size
        value = "double" if size_now is None else 2 * size_now
        yield Change(parameter="tensor_parallel_size", value=value, note="or quantised weights, which leave more")


def more_replicas(evidence: Evidence, count: int | None = None) -> Iterator[Change]:
    """Offer `count` replicas, by default one more."""
    fleet = evidence.fleet
    if not fleet.has_pools:
        yield Change(parameter=fleet.parameter, value=count or fleet.num_replicas + 1, note="shares the load")


def _higher(utilization: float | None) -> float:
    if utilization is None:
        return _SAFE_UTILIZATION
    return min(_HIGHEST_UTILIZATION, max(_SAFE_UTILIZATION, round(utilization + 0.05, 2)))
