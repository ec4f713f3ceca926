"""The error line of a run has every operator that it uses, and no other."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.executor.cost_model.errors import operator_errors
from engine.executor.cost_model.operators import FitError
from engine.simulation import SimulatedDevice, build_simulation, with_gpu_defaults

ATTENTION = {"decode_attention/bfloat16", "prefill_attention/bfloat16"}


@pytest.mark.parametrize(
    ("gpu", "tp", "quantization", "used"),
    [
        ("h100", 1, None, {"gemm/bfloat16"}),
        ("h100", 2, None, {"gemm/bfloat16", "all_reduce"}),
        ("h100", 1, "fp8", {"gemm/fp8"}),
        ("h100", 4, "fp8", {"gemm/fp8", "all_reduce"}),
        ("a100", 1, "fp8", {"gemm/bfloat16"}),  # no such units: computes in bfloat16
        ("h100", 1, "int4", {"gemm/bfloat16"}),
    ],
)
def test_operator_errors_are_those_of_the_deployment(
    gpu: str, tp: int, quantization: str | None, used: set[str]
) -> None:
    errors = errors_of(gpu, tp, quantization)

    assert set(errors) == used | ATTENTION
    assert all(error is not None and 0 < error.median < error.p90 for error in errors.values())


def test_operator_errors_name_what_was_not_measured() -> None:
    assert errors_of("h100", 16, None)["all_reduce"] is None
    assert errors_of("h100", 1, "int8")["gemm/int8"] is None
    assert set(errors_of("rtx-4090", 2, None).values()) == {None}


def errors_of(gpu: str, tp: int, quantization: str | None) -> dict[str, FitError | None]:
    device = SimulatedDevice.of(gpu, tensor_parallel_size=tp, quantization=quantization)
    values = {"model": "Qwen3-32B", "max_model_len": 4096, "num_blocks": 4096}
    simulation = build_simulation(EngineConfig.from_dict(with_gpu_defaults(values, device.gpu)), device)
    return dict(operator_errors(simulation.cost.rank))
