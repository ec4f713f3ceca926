"""All-reduce: measured sizes, interpolated by ratio; two regimes, the custom kernel below and NCCL above."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

CUSTOM_GRAPH, CUSTOM_EAGER, NCCL = "vLLM_custom_graph", "vLLM_custom_eager", "NCCL"
CUSTOM_LIMIT_BYTES = {2: 8 * 2**20, 4: 8 * 2**20, 8: 8 * 2**20}
"""Largest message that vLLM's custom kernel takes, by number of GPUs."""

Tables = Mapping[str, Sequence[tuple[float, float]]]


def all_reduce_s(tables: Tables, kernel: str, num_gpus: int, message_bytes: float) -> float | None:
    """Seconds by one kernel; None if it was not measured with that many GPUs.

    Between measured sizes log-log interpolation; beyond them the last slope, which is latency below and bandwidth
    above.
    """
    table = tables.get(f"{kernel}/{num_gpus}")
    if not table or len(table) < 2:
        return None
    sizes = np.log([size for size, _ in table])
    times = np.log([time for _, time in table])
    x = float(np.log(message_bytes))
    if x <= sizes[0]:
        return float(np.exp(times[0]))
    if x >= sizes[-1]:
        return float(np.exp(times[-1] + max(0.0, min(1.0, _last_slope(sizes, times))) * (x - sizes[-1])))
    return float(np.exp(np.interp(x, sizes, times)))


def step_all_reduce_s(tables: Tables, num_gpus: int, message_bytes: float, *, graph: bool) -> float | None:
    """What a model's forward pass uses: the custom kernel up to its limit, NCCL above; None if nothing was measured."""
    if num_gpus == 1:
        return 0.0
    custom = all_reduce_s(tables, CUSTOM_GRAPH if graph else CUSTOM_EAGER, num_gpus, message_bytes)
    nccl = all_reduce_s(tables, NCCL, num_gpus, message_bytes)
    if custom is not None and (message_bytes <= CUSTOM_LIMIT_BYTES.get(num_gpus, 0) or nccl is None):
        return custom
    return nccl


HOST_LATENCY_S = 30e-6
"""Through host memory, per message and doubling of the number of GPUs."""
HOST_SHARE = 0.35
"""Of the link's rate that is reached through host memory."""


def host_all_reduce_s(num_gpus: int, message_bytes: float, link_bandwidth: float) -> float:
    """Between GPUs that cannot reach each other's memory (GeForce cards): NCCL copies by way of the host."""
    moved = 2.0 * (num_gpus - 1) / num_gpus * message_bytes
    return HOST_LATENCY_S * math.log2(num_gpus) + moved / (HOST_SHARE * link_bandwidth)


def _last_slope(sizes: np.ndarray, times: np.ndarray) -> float:
    return float((times[-1] - times[-2]) / (sizes[-1] - sizes[-2]))
