from __future__ import annotations

import pytest
import torch

from engine.kv_geometry import KvGeometry
from engine.outputs import BlockCopy
from engine.worker.kv_cache import KvCache

GEOMETRY = KvGeometry(num_layers=2, num_kv_heads=1, head_dim=2, element_bytes=4, block_size=4)


def cache(dtype: torch.dtype = torch.float32) -> KvCache:
    """Every element of block i holds i."""
    made = KvCache(GEOMETRY, 6, dtype=dtype, device=torch.device("cpu"), num_host_blocks=2)
    for keys, values in made.layers:
        for block in range(6):
            keys[block] = values[block] = block
    return made


def contents(made: KvCache) -> list[int]:
    """What each block holds, checked to be the same in all layers, for keys and values."""
    tensors = [tensor for layer in made.layers for tensor in layer]
    assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
    return [int(block.unique().item()) for block in tensors[0]]


def copy(source: int, destination: int) -> BlockCopy:
    return BlockCopy(source=source, destination=destination, num_tokens=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
def test_layers_have_the_backends_layout_and_start_at_zero(dtype: torch.dtype) -> None:
    made = KvCache(GEOMETRY, 6, dtype=dtype, device=torch.device("cpu"))

    assert len(made.layers) == 2
    for tensor in made.layers[1]:
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((6, 1, 4, 2), dtype, True)
        assert not tensor.any()


def test_copy_blocks_happen_in_order() -> None:
    made = cache()

    made.copy_blocks([copy(1, 2), copy(2, 3), copy(5, 1)])

    assert contents(made) == [0, 5, 1, 1, 4, 5]


def test_swap_out_and_in_restores_elsewhere() -> None:
    made = cache()

    made.swap_out([copy(4, 0), copy(5, 1)])
    made.copy_blocks([copy(1, 4), copy(1, 5)])
    made.swap_in([copy(1, 2), copy(0, 3)])

    assert contents(made) == [0, 1, 5, 4, 1, 1]
