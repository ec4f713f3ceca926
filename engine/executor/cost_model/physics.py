"""Formulas for the time of GPU operators: launch floor + smooth maximum of compute, memory and latency.

All are vectorised over rows and take their free parameters by name; `engine.executor.calibration` fits those to
measured tables. What the formulas miss (kernel selection, clock behaviour) is learned on top in `operators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Parameters = Mapping[str, float]

# Output tiles of the usual GEMM kernels, largest first: (rows, columns).
_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (16, 64))
_SPLIT_K = 256
"""Least part of the inner dimension that one thread block takes when a GEMM is split over it."""
_PREFILL_TILE = 128
_DECODE_SPLIT = 256
"""Least number of KV positions that one thread block takes when decode attention is split over them."""
_GROUP_ROWS = 16
"""Query heads of one KV head are padded to this many matrix rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What the formulas need to know of a GPU."""

    num_sms: int
    bandwidth: float
    """Bytes per second."""
    flops: float
    """Of the element type in question, per second."""


def smooth_max(sharpness: float, *terms: Array) -> Array:
    """p-norm of the terms: their maximum where one dominates, more where several are alike."""
    largest: Array = np.maximum.reduce(terms)
    total: Array = np.add.reduce([(term / largest) ** sharpness for term in terms])
    return np.asarray(largest * total ** (1.0 / sharpness), dtype=np.float64)


def gemm_s(p: Parameters, m: Array, n: Array, k: Array, chip: Chip, weight_bytes: float, act_bytes: float) -> Array:
    """out[m, n] = in[m, k] x W[k, n], seconds. Tiles in whole waves over the SMs.

    A kernel library takes the fastest tile and splits small GEMMs over k; vLLM's own fp8 kernels (those have the
    parameters row_ns and output) choose the tile by m alone and do not split.

    `weight_bytes`, `act_bytes`: per element (0.5 for int4 weights). Parameters: launch_us, compute (share of peak),
    memory (share of bandwidth), sharpness, small_tile, l2_gain, l2_mib, l2_edge, short_k, quantise (passes over the
    input), row_ns (per quantised row), output (passes over the output that nothing hides).
    """
    compute = np.full_like(m, np.inf)
    by_rows = "row_ns" in p
    for rows, columns in (_tile_by_rows(m),) if by_rows else _TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        tile_share = p["compute"] * rows * columns / (rows * columns + p["small_tile"] * 4096.0)
        share = tile_share * k / (k + p["short_k"] * 64.0)
        waves = tiles / chip.num_sms
        parts = 1.0 if by_rows else np.floor(k / _SPLIT_K)
        split = np.maximum(waves, 1.0 / np.maximum(1.0, parts))
        waves = np.where(waves < 1.0, split, np.ceil(waves))
        compute = np.minimum(compute, waves * 2.0 * rows * columns * k * chip.num_sms / (chip.flops * share))
    moved = weight_bytes * n * k + act_bytes * m * k + 2.0 * m * n
    memory = moved / (p["memory"] * chip.bandwidth * _l2_factor(p, moved))
    quantise = p["quantise"] * 3.0 * m * k / chip.bandwidth if act_bytes < 2 else 0.0
    beside = quantise + m * p.get("row_ns", 0.0) * 1e-9 + p.get("output", 0.0) * 2.0 * m * n / chip.bandwidth
    return p["launch_us"] * 1e-6 + beside + smooth_max(p["sharpness"], compute, memory)


def decode_attention_s(
    p: Parameters,
    batch: Array,
    kv_len: Array,
    heads: Array,
    kv_heads: Array,
    head_dim: Array,
    kv_bytes: Array,
    chip: Chip,
) -> Array:
    """One new token for each of `batch` sequences of `kv_len` tokens, one layer, seconds.

    Parameters: launch_us, memory, sharpness, merge_us (of a split), compute, position_ns (one block's time per KV
    position), l2_gain, l2_mib, l2_edge, small_kv (factor for one-byte elements).
    """
    moved = 2.0 * batch * kv_len * kv_heads * head_dim * kv_bytes + 4.0 * batch * heads * head_dim
    memory = moved / (p["memory"] * chip.bandwidth * _l2_factor(p, moved)) * np.where(kv_bytes < 2, p["small_kv"], 1.0)
    rows = np.ceil(heads / kv_heads / _GROUP_ROWS) * _GROUP_ROWS
    compute = 4.0 * batch * kv_heads * rows * kv_len * head_dim / (p["compute"] * chip.flops)
    units = batch * kv_heads
    splits = np.maximum(1.0, np.minimum(np.floor(chip.num_sms / units), np.ceil(kv_len / _DECODE_SPLIT)))
    latency = np.ceil(units * splits / chip.num_sms) * (kv_len / splits) * p["position_ns"] * 1e-9
    merge = p["merge_us"] * 1e-6 * (splits > 1)
    return np.asarray(p["launch_us"] * 1e-6 + merge + smooth_max(p["sharpness"], memory, compute, latency))


def prefill_attention_s(
    p: Parameters,
    batch: Array,
    new: Array,
    cached: Array,
    heads: Array,
    kv_heads: Array,
    head_dim: Array,
    kv_bytes: Array,
    chip: Chip,
) -> Array:
    """`batch` sequences of `new` tokens each on `cached` ones, causal, one layer, seconds.

    Work grows as new x (new + 2 x cached) / 2. Parameters: launch_us, memory, sharpness, compute, small_head (share of
    `compute` reached with heads under 128), ramp (loss on short sequences), small_kv (factor for one-byte elements).
    """
    tiles = np.ceil(new / _PREFILL_TILE)
    padded = tiles * _PREFILL_TILE
    pairs = batch * heads * padded * (padded + _PREFILL_TILE + 2.0 * cached) / 2.0
    share = np.where(head_dim < 128, p["small_head"], p["compute"]) / (1.0 + p["ramp"] * _PREFILL_TILE / new)
    occupancy = np.minimum(1.0, batch * heads * tiles / chip.num_sms)
    compute = 4.0 * pairs * head_dim / (share * chip.flops * occupancy) * np.where(kv_bytes < 2, p["small_kv"], 1.0)
    moved = 2.0 * batch * (new + cached) * kv_heads * head_dim * kv_bytes + 4.0 * batch * new * heads * head_dim
    memory = moved / (p["memory"] * chip.bandwidth)
    return np.asarray(p["launch_us"] * 1e-6 + smooth_max(p["sharpness"], compute, memory))


def _tile_by_rows(m: Array) -> tuple[Array, Array]:
    """(rows, columns) of the output tile for m rows of input: CUTLASS kernels chosen by the number of tokens."""
    rows = np.clip(2.0 ** np.ceil(np.log2(m)), 16.0, 128.0)
    return rows, np.where(m > 256.0, 128.0, 64.0)


def _l2_factor(p: Parameters, moved: Array) -> Array:
    """How much faster than DRAM data move that may still lie in the L2 cache."""
    return np.asarray(1.0 + p["l2_gain"] / (1.0 + (moved / (p["l2_mib"] * 1e6)) ** p["l2_edge"]))
