from __future__ import annotations

import numpy as np
import pytest

from engine.kernels import numba_decode

pytest.importorskip("numba")


def test_decode_kernel_literal_case_gives_the_softmax_average() -> None:
    """Two positions with scores ln 1 and ln 3: weights 1/4 and 3/4."""
    keys = np.zeros((3, 1, 1, 16), dtype=np.float64)
    values = np.zeros_like(keys)
    keys[2, 0, 0, 0], keys[1, 0, 0, 0] = np.log(1.0), np.log(3.0)
    values[2, 0, 0, 0], values[1, 0, 0, 0] = 8.0, 16.0
    query = np.zeros((1, 2, 16), dtype=np.float64)
    query[0, :, 0] = (1.0, 0.0)  # the second head sees equal scores
    out = np.empty_like(query)
    kernel = numba_decode.build_decode_kernel(16, 2, "float64")

    kernel(query, keys, values, np.array([[2, 1]], dtype=np.int32), np.array([2], dtype=np.int32), 1.0, out)

    assert out[0, 0, 0] == pytest.approx(14.0, abs=1e-12)
    assert out[0, 1, 0] == pytest.approx(12.0, abs=1e-12)


def test_cpu_backend_without_numba_falls_back_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from engine.attention.base import AttentionBatch, AttentionShape
    from engine.attention.registry import build_backend

    torch.manual_seed(0)
    shape = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=16, block_size=4, scale=0.25)
    batch = AttentionBatch(
        num_decodes=2,
        query_starts=np.array([0, 1, 2, 5], dtype=np.int32),
        seq_lens=np.array([3, 6, 5], dtype=np.int32),
        block_tables=np.array([[1, 0], [2, 3], [4, 5]], dtype=np.int32),
        slot_mapping=np.array([6, 13, 18, 19, 20]),
    )
    query, key, value = torch.randn(5, 4, 16), torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    caches = torch.randn(2, 6, 2, 4, 16)
    expected = build_backend("torch_reference", shape, torch.device("cpu")).prepare(batch)(
        query, key, value, *caches.clone()
    )
    monkeypatch.setattr(numba_decode, "is_available", lambda: False)

    actual = build_backend("cpu", shape, torch.device("cpu")).prepare(batch)(query, key, value, *caches.clone())

    assert torch.allclose(actual, expected, atol=2e-6)
