"""The one contract that every attention backend passes, against the torch reference or first principles."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.attention.base import AttentionBatch, AttentionShape
from engine.attention.registry import BACKENDS, build_backend
from engine.errors import ConfigError

IS_INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
CPU = torch.device("cpu")

# (computed before, computed now) per sequence, decodes first as the contract asks
CASES: dict[str, list[tuple[int, int]]] = {
    "first_token_alone": [(0, 1)],
    "decodes_of_mixed_lengths": [(0, 1), (5, 1), (16, 1), (33, 1)],
    "fresh_prompts": [(0, 2), (0, 17)],
    "chunk_behind_prefix": [(19, 13)],
    "mixed_step": [(7, 1), (30, 1), (0, 9), (8, 8)],
}
# A process interprets Triton kernels or it does not; the interpreted run is started by the last test.
BACKEND_NAMES = ["triton"] if IS_INTERPRETING else [name for name in BACKENDS if name != "triton"]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


class Problem:
    """A random batch whose blocks lie shuffled in a cache full of values that must not be read."""

    def __init__(
        self,
        spans: Sequence[tuple[int, int]],
        *,
        block_size: int,
        dtype: torch.dtype,
        group: int = 3,
        head_dim: int = 16,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        kv_heads, num_tokens = 2, sum(now for _, now in spans)
        self.shape = AttentionShape(
            num_heads=group * kv_heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            scale=head_dim**-0.5,
        )
        lengths = [before + now for before, now in spans]
        per_seq = [-(-length // block_size) for length in lengths]
        order = (torch.randperm(sum(per_seq), generator=generator) + 1).tolist()
        tables = np.zeros((len(spans), max(per_seq)), dtype=np.int32)
        slots: list[int] = []
        for i, (before, now) in enumerate(spans):
            tables[i, : per_seq[i]] = [order.pop() for _ in range(per_seq[i])]
            slots += [
                int(tables[i, p // block_size]) * block_size + p % block_size for p in range(before, before + now)
            ]
        self.batch = AttentionBatch(
            num_decodes=sum(now == 1 for _, now in spans),
            query_starts=np.cumsum([0, *(now for _, now in spans)]).astype(np.int32),
            seq_lens=np.array(lengths, dtype=np.int32),
            block_tables=tables,
            slot_mapping=np.array(slots, dtype=np.int64),
        )

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

        cache_size = (sum(per_seq) + 1, kv_heads, block_size, head_dim)
        self.key_cache, self.value_cache = normal(*cache_size), normal(*cache_size)
        self.key_cache[0] = self.value_cache[0] = 1e4  # block 0 is never part of a sequence
        # query, key and value are slices of one fused projection, as in the model
        fused = normal(num_tokens, (group + 2) * kv_heads, head_dim)
        self.query, self.key, self.value = fused.split([group * kv_heads, kv_heads, kv_heads], dim=1)

    def run(self, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        caches = self.key_cache.clone(), self.value_cache.clone()
        attend = build_backend(name, self.shape, CPU).prepare(self.batch)
        return attend(self.query, self.key, self.value, *caches), *caches


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_backend_float32_matches_reference_in_float64(name: str, block_size: int, case: str) -> None:
    expected, *_ = Problem(CASES[case], block_size=block_size, dtype=torch.float64).run("torch_reference")
    actual, *_ = Problem(CASES[case], block_size=block_size, dtype=torch.float32).run(name)

    assert actual.dtype == torch.float32
    assert torch.allclose(actual.double(), expected, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_backend_other_types_match_reference(name: str, dtype: torch.dtype) -> None:
    if name == "triton" and dtype == torch.float64:
        with pytest.raises(ConfigError, match="float64"):
            Problem(CASES["mixed_step"], block_size=8, dtype=dtype).run(name)
        return
    problem = Problem(CASES["mixed_step"], block_size=8, dtype=dtype)
    expected, *_ = problem.run("torch_reference")
    actual, *_ = problem.run(name)

    assert actual.dtype == dtype
    assert torch.allclose(actual.double(), expected.double(), atol=TOLERANCE[dtype])


@pytest.mark.parametrize(("head_dim", "group"), [(32, 1), (80, 4)])
@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_backend_other_head_shapes_match_reference(name: str, head_dim: int, group: int) -> None:
    problem = Problem(CASES["mixed_step"], block_size=16, dtype=torch.float32, group=group, head_dim=head_dim)
    expected, *_ = problem.run("torch_reference")
    actual, *_ = problem.run(name)

    assert torch.allclose(actual, expected, atol=4e-6)


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_backend_writes_its_slots_and_no_others(name: str) -> None:
    problem = Problem(CASES["mixed_step"], block_size=8, dtype=torch.float32)
    _, key_cache, value_cache = problem.run(name)

    for cache, before, states in (
        (key_cache, problem.key_cache, problem.key),
        (value_cache, problem.value_cache, problem.value),
    ):
        expected = before.clone()
        for token, slot in enumerate(problem.batch.slot_mapping.tolist()):
            expected[slot // 8, :, slot % 8] = states[token]
        assert torch.equal(cache, expected)


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_backend_reads_blocks_that_another_sequence_fills_in_the_same_step(name: str) -> None:
    """Prefix sharing finds full blocks when they are scheduled, not when they are computed."""
    problem = Problem([(8, 1), (0, 9)], block_size=8, dtype=torch.float32)
    problem.batch.block_tables[0, 0] = problem.batch.block_tables[1, 0]
    expected, *_ = problem.run("torch_reference")
    actual, *_ = problem.run(name)

    keys = torch.cat((problem.key[1:9], problem.key[:1])).repeat_interleave(3, dim=1)
    values = torch.cat((problem.value[1:9], problem.value[:1])).repeat_interleave(3, dim=1)
    weights = (torch.einsum("hd,khd->hk", problem.query[0], keys) / 4).softmax(dim=-1)
    assert torch.allclose(expected[0], torch.einsum("hk,khd->hd", weights, values), atol=1e-6)
    assert torch.allclose(actual, expected, atol=2e-6)


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_backend_cache_narrower_than_model_rounds_in_the_cache(name: str) -> None:
    problem = Problem(CASES["mixed_step"], block_size=8, dtype=torch.float32)
    problem.key_cache, problem.value_cache = problem.key_cache.bfloat16(), problem.value_cache.bfloat16()
    expected, *_ = problem.run("torch_reference")
    actual, *_ = problem.run(name)

    assert torch.allclose(actual, expected, atol=2e-6)


def test_build_backend_misspelt_name_suggests_known() -> None:
    with pytest.raises(ConfigError, match="did you mean 'triton'"):
        build_backend("tritn", Problem([(0, 1)], block_size=8, dtype=torch.float32).shape, CPU)


if not IS_INTERPRETING:

    def test_triton_backend_without_gpu_is_refused() -> None:
        with pytest.raises(ConfigError, match="needs a CUDA device"):
            build_backend("triton", Problem([(0, 1)], block_size=8, dtype=torch.float32).shape, CPU)

    def test_triton_backend_interpreted_passes_this_contract() -> None:
        """In its own process: Triton decides at import whether kernels are interpreted."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
        done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)

        assert done.returncode == 0, done.stdout + done.stderr
        num_passed = re.search(r"(\d+) passed", done.stdout)
        assert num_passed, done.stdout
        assert int(num_passed[1]) >= 20
