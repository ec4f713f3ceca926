"""Rotary frequencies against transformers for every scaling that we run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.layers.rotary import RotaryEmbedding, inverse_frequencies, rotate
from engine.model_spec import spec_from_hf_config

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 8,
    "max_position_embeddings": 4096,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        LLAMA3,
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_inverse_frequencies_equal_transformers(rope: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = {key: value for key, value in BASE.items() if key != "architectures"}
    expected = LlamaRotaryEmbedding(LlamaConfig(**config, rope_parameters=dict(rope))).inv_freq
    spec = spec_from_hf_config({**BASE, "rope_parameters": rope}, name="x")

    assert torch.allclose(inverse_frequencies(spec.rope, spec.head_dim), expected, rtol=1e-6, atol=0)


def test_rotate_quarter_turn_swaps_the_halves() -> None:
    """Feature i turns with feature i + head_dim / 2."""
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    cos, sin = torch.zeros(1, 1, 4), torch.tensor([[[-1.0, -1.0, 1.0, 1.0]]])

    assert rotate(x, cos, sin).tolist() == [[[-3.0, -4.0, 1.0, 2.0]]]


def test_rotation_depends_on_distance_only() -> None:
    spec = spec_from_hf_config(BASE, name="x")
    rotary = RotaryEmbedding(spec.rope, spec.head_dim, 100, torch.float64, torch.device("cpu"))
    query, key = torch.randn(2, 1, 1, spec.head_dim, dtype=torch.float64)

    def score(query_at: int, key_at: int) -> float:
        q, k = (rotate(x, *rotary.at(torch.tensor([p]))) for x, p in ((query, query_at), (key, key_at)))
        return float((q * k).sum())

    assert score(9, 4) == pytest.approx(score(70, 65), rel=1e-4)
