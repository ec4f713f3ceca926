"""The paged KV cache: one pool of blocks on the device, one on the host for swapping."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.kv_geometry import KvGeometry
from engine.outputs import BlockCopy

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class KvCache:
    """Keys and values of all layers, [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim].

    One tensor for all layers, so that copying a block in every layer is one operation; a layer's key or value cache is
    a contiguous slice of it (the layout of `attention.base`).
    """

    def __init__(
        self,
        geometry: KvGeometry,
        num_blocks: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
    ) -> None:
        self._pool = _zeros(geometry, num_blocks, dtype, device)
        self._host_pool = _zeros(geometry, num_host_blocks, dtype, torch.device("cpu"))
        self.layers = [(layer[0], layer[1]) for layer in self._pool]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Within the device, in order: a later copy may read what an earlier one wrote."""
        _apply(copies, self._pool, self._pool)

    def swap_out(self, copies: Sequence[BlockCopy]) -> None:
        """Device to host pool."""
        _apply(copies, self._pool, self._host_pool)

    def swap_in(self, copies: Sequence[BlockCopy]) -> None:
        """Host pool to device."""
        _apply(copies, self._host_pool, self._pool)


def _zeros(geometry: KvGeometry, num_blocks: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    shape = (geometry.num_layers, 2, num_blocks, geometry.num_kv_heads, geometry.block_size, geometry.head_dim)
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros are pages that the system provides on first touch: a pool of many GiB starts at once and takes only
    # the memory that requests really fill. torch.zeros would write all of it now.
    return torch.from_numpy(np.zeros(shape, dtype=_BITS[dtype.itemsize])).view(dtype)


def _apply(copies: Sequence[BlockCopy], source_pool: torch.Tensor, destination_pool: torch.Tensor) -> None:
    """Whole blocks: what lies behind `num_tokens` is never read."""
    for batch in _independent_runs(copies) if source_pool is destination_pool else [copies]:
        if batch:
            sources = torch.tensor([copy.source for copy in batch], device=source_pool.device)
            destinations = torch.tensor([copy.destination for copy in batch], device=destination_pool.device)
            blocks = source_pool.index_select(2, sources).to(destination_pool.device)
            destination_pool.index_copy_(2, destinations, blocks)


def _independent_runs(copies: Sequence[BlockCopy]) -> list[list[BlockCopy]]:
    """Split where a copy reads or overwrites a block that the run before it has written."""
    runs: list[list[BlockCopy]] = [[]]
    written: set[int] = set()
    for copy in copies:
        if copy.source in written or copy.destination in written:
            runs.append([])
            written = set()
        runs[-1].append(copy)
        written.add(copy.destination)
    return runs
