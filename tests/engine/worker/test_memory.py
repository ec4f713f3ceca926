from __future__ import annotations

from typing import Any

import pytest

from engine.config import EngineConfig
from engine.models.builtin import BUILTIN_SPECS
from engine.resolve import resolve
from engine.worker.memory import measure_activation_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("model", "limits"),
    [
        ("tiny", {"max_num_batched_tokens": 512, "max_num_seqs": 64, "max_model_len": 256}),
        ("tiny", {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "max_model_len": 2048}),
        ("small", {"max_num_batched_tokens": 1000, "max_num_seqs": 8, "max_model_len": 2048}),
        ("small", {"max_num_batched_tokens": 1024, "max_num_seqs": 1024, "max_model_len": 64}),
    ],
)
def test_measured_peak_is_close_to_and_not_above_the_estimate(model: str, limits: dict[str, Any], dtype: str) -> None:
    config = EngineConfig.from_dict({"model": model, "dtype": dtype, "num_blocks": 600, "threads": 1, **limits})
    resolved = resolve(config, BUILTIN_SPECS[model])

    measured = measure_activation_bytes(resolved)

    assert 0.93 * measured <= resolved.memory.activation_bytes <= 1.7 * measured
