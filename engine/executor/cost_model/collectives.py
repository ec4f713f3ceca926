"""All-reduce: measured sizes, and between them a line in time over size, within one regime of vLLM's dispatch.

`vLLM_custom_graph` and `vLLM_custom_eager` rows time whatever vLLM chooses for a message of that size: its own kernel
in one pass over all peers or in two, a symmetric-memory kernel, or NCCL. Time jumps where the choice changes, so no
line may cross such a border. Sizes of the borders: vLLM's custom_all_reduce.cuh and all_reduce_utils.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

CUSTOM_GRAPH, CUSTOM_EAGER, NCCL = "vLLM_custom_graph", "vLLM_custom_eager", "NCCL"

Table = Sequence[tuple[float, float]]
"""(message bytes, seconds), ascending."""
Tables = Mapping[str, Table]
"""`KERNEL/NUM_GPUS` -> table."""

_KIB, _MIB = 1024.0, 1024.0**2
CUSTOM_LIMIT_BYTES = 8 * _MIB
"""Smallest message that vLLM's own kernel leaves to NCCL."""
_BORDERS: Mapping[str, Mapping[int, tuple[float, ...]]] = {
    "Hopper": {2: (64 * _MIB + 1,), 4: (512 * _KIB, 32 * _MIB + 1), 8: (256 * _KIB, 64 * _MIB + 1)},
    "Blackwell": {2: (2 * _MIB, 8 * _MIB + 1), 4: (512 * _KIB, 2 * _MIB, 32 * _MIB + 1),
                  8: (256 * _KIB, _MIB, 128 * _MIB + 1)},
    "": {2: (8 * _MIB,), 4: (512 * _KIB, 8 * _MIB), 8: (256 * _KIB, 8 * _MIB)},
}  # fmt: skip
"""Architecture (empty: any other) -> number of GPUs -> smallest message of each regime but the first. Two passes begin
at 512 KiB between four GPUs, at 256 KiB between eight. NCCL comes last, after symmetric memory, whose limit still
belongs to it (+ 1), or after the custom kernel, whose limit does not."""


def all_reduce_s(tables: Tables, kernel: str, num_gpus: int, message_bytes: float) -> float | None:
    """Seconds by one kernel; None if it was not measured with that many GPUs.

    Beyond the measured sizes: constant below (latency), the last slope above (bandwidth).
    """
    table = tables.get(f"{kernel}/{num_gpus}")
    if not table or len(table) < 2:
        return None
    if message_bytes > table[-1][0]:
        return _extended(table, message_bytes)
    sizes, times = zip(*table, strict=True)
    return float(np.interp(message_bytes, sizes, times))


def step_all_reduce_s(tables: Tables, num_gpus: int, message_bytes: float, *, graph: bool) -> float | None:
    """What a model's forward pass uses: vLLM's own kernels below 8 MiB, NCCL from there; None if nothing was measured.

    Symmetric memory for larger messages is newer than most published runs, and gains a tenth at best.
    """
    if num_gpus == 1:
        return 0.0
    custom = all_reduce_s(tables, CUSTOM_GRAPH if graph else CUSTOM_EAGER, num_gpus, message_bytes)
    nccl = all_reduce_s(tables, NCCL, num_gpus, message_bytes)
    return nccl if custom is None or (nccl is not None and message_bytes >= CUSTOM_LIMIT_BYTES) else custom


def borders(kernel: str, num_gpus: int, arch: str) -> tuple[float, ...]:
    """Smallest message, bytes, of each regime of a kernel's table but the first."""
    return () if kernel == NCCL else _BORDERS.get(arch, _BORDERS[""]).get(num_gpus, ())


def with_borders(tables: Tables, arch: str) -> dict[str, Table]:
    """The tables with two more points at each border between regimes, each found from its own side.

    The last regime is NCCL: where it was not measured near its border, NCCL's own table gives the shape.
    """
    return {key: _with_borders(table, key, tables, arch) for key, table in tables.items()}


def _with_borders(table: Table, key: str, tables: Tables, arch: str) -> Table:
    kernel, num_gpus = key.rsplit("/", 1)
    out: list[tuple[float, float]] = []
    for low, high in pairwise((0.0, *borders(kernel, int(num_gpus), arch), math.inf)):
        points = [point for point in table if low <= point[0] < high]
        if not points:
            continue
        if 0.0 < low < points[0][0]:
            nccl = _nccl_s(tables, num_gpus, low, points[0]) if high == math.inf else None
            out.append((low, _extended(points, low) if nccl is None else nccl))
        out += points
        if points[-1][0] < high - 1.0 < math.inf:
            out.append((high - 1.0, _extended(points, high - 1.0)))
    return out


def _nccl_s(tables: Tables, num_gpus: str, size: float, near: tuple[float, float]) -> float | None:
    """NCCL's time for `size`, scaled to what was measured through vLLM at the nearest size (eager mode copies)."""
    there, here = (all_reduce_s(tables, NCCL, int(num_gpus), each) for each in (near[0], size))
    return None if there is None or here is None else here * near[1] / there


def _extended(points: Table, size: float) -> float:
    """At a size beyond all points: the line through the nearest two, no faster than proportional and never falling."""
    nearest = sorted(points, key=lambda point: abs(point[0] - size))[:2]
    (end_size, end_s), (inner_size, inner_s) = nearest[0], nearest[-1]
    slope = 0.0 if inner_size == end_size else (end_s - inner_s) / (end_size - inner_size)
    return end_s + min(max(slope, 0.0), end_s / end_size) * (size - end_size)


HOST_LATENCY_S = 30e-6
"""Through host memory, per message and doubling of the number of GPUs."""
HOST_SHARE = 0.35
"""Of the link's rate that is reached through host memory."""


def host_all_reduce_s(num_gpus: int, message_bytes: float, link_bandwidth: float) -> float:
    """Between GPUs that cannot reach each other's memory (GeForce cards): NCCL copies by way of the host."""
    moved = 2.0 * (num_gpus - 1) / num_gpus * message_bytes
    return HOST_LATENCY_S * math.log2(num_gpus) + moved / (HOST_SHARE * link_bandwidth)
