from __future__ import annotations

import pytest

from engine.catalog import find_catalog_model, find_gpu, list_gpus, list_models
from engine.errors import ConfigError
from engine.kv_geometry import KvGeometry


def test_catalog_holds_18_gpus_and_39_models_with_unique_names() -> None:
    assert len({gpu.id for gpu in list_gpus()}) == len(list_gpus()) == 18
    assert len({spec.name for spec in list_models()}) == len(list_models()) == 39


@pytest.mark.parametrize(
    ("spelling", "gpu_id"),
    [
        ("A100-SXM4-80GB", "a100-80g-sxm"),
        ("A100-80GB", "a100-80g-sxm"),
        ("a100", "a100-80g-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g-sxm"),
        ("A100-80GB pairwise NVLink", "a100-80g-sxm"),
        ("H100-SXM-80GB DGX", "h100-80g-sxm"),
        ("H100 PCIe", "h100-80g-pcie"),
        ("H200-SXM-141GB", "h200-141g-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090-24g"),
        ("rtx4090", "rtx-4090-24g"),
        ("RTX-PRO-6000-96GB", "rtx-pro-6000-96g"),
        ("RTX A6000", "rtx-a6000-48g"),
        ("L4", "l4-24g"),
        ("l40s", "l40s-48g"),
        ("MI300X-192GB", "mi300x-192g"),
    ],
)
def test_find_gpu_understands_every_usual_spelling(spelling: str, gpu_id: str) -> None:
    assert find_gpu(spelling).id == gpu_id


def test_find_gpu_of_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'h100-80g-smx' is not in the catalogue\. did you mean 'h100-80g-sxm'"):
        find_gpu("h100-80g-smx")
    with pytest.raises(ConfigError, match="not in the catalogue"):
        find_gpu("")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen2.5-7B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-7B-Instruct"),
        ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8", "meta-llama/Llama-3.1-70B"),
        ("Llama-3.3-70B-Instruct-FP8", "meta-llama/Llama-3.1-70B"),
        ("QwQ-32B", "Qwen/Qwen2.5-32B-Instruct"),
        ("Qwen3-4B-Instruct-2507-FP8", "Qwen/Qwen3-4B"),
        ("TheBloke/Llama-2-13B-AWQ", "meta-llama/Llama-2-13b-hf"),
    ],
)
def test_find_model_knows_organisations_aliases_and_quantised_names(name: str, model: str) -> None:
    found = find_catalog_model(name)
    assert found is not None
    assert found.name == model


def test_find_model_of_an_unknown_name_is_absent() -> None:
    assert find_catalog_model("no-such-model") is None


@pytest.mark.parametrize(
    ("name", "billions", "kv_bytes"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7.62, 57_344),
        ("meta-llama/Llama-2-13b-hf", 13.02, 819_200),
        ("meta-llama/Llama-3.1-8B", 8.03, 131_072),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.78, 28_672),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, 131_072),
    ],
)
def test_model_geometry_gives_the_published_size_and_kv_bytes(name: str, billions: float, kv_bytes: int) -> None:
    spec = find_catalog_model(name)
    assert spec is not None
    assert spec.num_parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert KvGeometry.of(spec, dtype="bfloat16", block_size=16).bytes_per_token == kv_bytes
