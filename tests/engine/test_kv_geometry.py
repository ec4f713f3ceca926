from __future__ import annotations

import pytest

from engine.kv_geometry import KvGeometry


def geometry(*, layers: int, kv_heads: int, head_dim: int, block_size: int = 16) -> KvGeometry:
    return KvGeometry(
        num_layers=layers, num_kv_heads=kv_heads, head_dim=head_dim, element_bytes=2, block_size=block_size
    )


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "expected"),
    [(40, 40, 128, 819_200), (28, 4, 128, 57_344), (32, 8, 128, 131_072), (30, 3, 64, 23_040)],
    ids=["llama-2-13b", "qwen2.5-7b", "llama-3.1-8b", "smollm2-135m"],
)
def test_bytes_per_token_of_known_models_is_as_published(
    layers: int, kv_heads: int, head_dim: int, expected: int
) -> None:
    assert geometry(layers=layers, kv_heads=kv_heads, head_dim=head_dim).bytes_per_token == expected


def test_num_blocks_counts_whole_blocks_only() -> None:
    kv = geometry(layers=32, kv_heads=8, head_dim=128)

    assert kv.bytes_per_block == 2 * 1024**2
    assert kv.num_blocks(5 * 1024**2) == 2
    assert kv.num_blocks(-1) == 0


def test_num_blocks_for_rounds_up() -> None:
    kv = geometry(layers=1, kv_heads=1, head_dim=1, block_size=16)

    assert [kv.num_blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
