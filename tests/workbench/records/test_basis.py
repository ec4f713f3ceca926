"""What an answer rests on, in its first line."""

from __future__ import annotations

from workbench.records.basis import Basis

PROFILE = {"name": "a100-80g-sxm", "kind": "catalogue", "error": {"gemm": {"p90": 0.14}, "decode": {"p90": 0.194}}}
ENGINE = {
    "gpu": "a100-80g-sxm",
    "tensor_parallel_size": 2,
    "profile": PROFILE,
    "vllm_version": "0.32",
    "async_scheduling": True,
}


def test_basis_of_a_simulated_run_names_hardware_profile_error_and_version() -> None:
    basis = Basis.of("simulated", "Qwen/Qwen2.5-7B-Instruct", ENGINE)
    assert basis.to_dict() == {
        "kind": "simulated",
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "gpu": "a100-80g-sxm",
        "tp": 2,
        "profile": "catalogue a100-80g-sxm",
        "error_p90": 0.194,
        "vllm_version": "0.32",
        "is_async": True,
    }
    assert basis.sentence.startswith("Simulated: Qwen/Qwen2.5-7B-Instruct on 2 x a100-80g-sxm")
    assert "19%" in basis.sentence
    assert "asynchronous" in basis.sentence


def test_basis_of_a_real_run_is_measured_and_claims_no_gpu() -> None:
    for kind in ("embedded", "endpoint"):
        basis = Basis.of(kind, "tiny", ENGINE)
        assert basis.sentence.startswith("Measured: tiny")
        assert basis.to_dict() | {"kind": kind, "model": "tiny"} == dict.fromkeys(basis.to_dict()) | {
            "kind": kind,
            "model": "tiny",
        }
