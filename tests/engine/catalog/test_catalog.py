from __future__ import annotations

import pytest

from engine.catalog import find_catalog_model, find_gpu, list_gpus, list_models, published_name
from engine.catalog.advice import advice_on
from engine.errors import ConfigError
from engine.kv_geometry import KvGeometry


def test_catalog_holds_23_gpus_and_52_models_with_unique_names() -> None:
    assert len({gpu.id for gpu in list_gpus()}) == len(list_gpus()) == 23
    assert len({spec.name for spec in list_models()}) == len(list_models()) == 52


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
        ("Qwen/Qwen1.5-7B-Chat", 7.72, 524_288),
        ("Qwen/Qwen1.5-14B-Chat", 14.17, 819_200),
        ("Qwen/Qwen1.5-32B-Chat", 32.5, 262_144),
        ("Qwen/Qwen1.5-72B-Chat", 72.3, 2_621_440),
        ("01-ai/Yi-6B", 6.06, 65_536),
        ("01-ai/Yi-34B", 34.39, 245_760),
        ("mistralai/Mistral-7B-Instruct-v0.2", 7.24, 131_072),
        ("microsoft/Phi-3-mini-128k-instruct", 3.82, 393_216),
        ("microsoft/Phi-3-medium-128k-instruct", 13.96, 204_800),
        ("microsoft/Phi-4-mini-instruct", 3.84, 131_072),
        ("google/gemma-2b-it", 2.51, 18_432),
        ("google/gemma-7b-it", 8.54, 458_752),
        ("google/gemma-2-2b-it", 2.61, 106_496),
    ],
)
def test_model_geometry_gives_the_published_size_and_kv_bytes(name: str, billions: float, kv_bytes: int) -> None:
    spec = find_catalog_model(name)
    assert spec is not None
    assert spec.num_parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert KvGeometry.of(spec, dtype="bfloat16", block_size=16).bytes_per_token == kv_bytes


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct-AWQ"),
        ("DeepSeek-R1-Distill-Llama-70B", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"),
        ("vicuna-7b-v1.5", "lmsys/vicuna-7b-v1.5"),
        ("somebody/Qwen2.5-7B-FP8", "somebody/Qwen2.5-7B-FP8"),
        ("no-such-model", "no-such-model"),
    ],
)
def test_published_name_has_the_organisation_that_a_server_can_load_it_from(name: str, published: str) -> None:
    assert published_name(name) == published


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("deepseek-ai/DeepSeek-V3", "one latent per token"),
        ("deepseek-ai/DeepSeek-R1-0528", "one latent per token"),
        ("google/gemma-3-27b-it", "full and windowed layers"),
        ("openai/gpt-oss-20b", "full and windowed layers"),
        ("Qwen2.5-7B-Instrct", "Nearest known: Qwen/Qwen2.5-7B-Instruct"),
        ("zzz", "workbench catalog models"),
    ],
)
def test_advice_names_what_cannot_be_sized_and_what_is_near(name: str, advice: str) -> None:
    assert advice in advice_on(name)
