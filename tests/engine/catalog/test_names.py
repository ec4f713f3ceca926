"""What a name means: the checkpoint's own window, its weight type, one card and no other."""

from __future__ import annotations

import pytest

from engine.catalog import find_catalog_model, find_gpu
from engine.catalog.model_names import weights_in_name
from engine.errors import ConfigError
from engine.model_spec import ModelSpec


def spec_of(name: str) -> ModelSpec:
    spec = find_catalog_model(name)
    assert spec is not None
    return spec


@pytest.mark.parametrize(
    ("checkpoint", "window"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 131_072),
        ("DeepSeek-R1-Distill-Qwen-14B", 131_072),
        ("DeepSeek-R1-Distill-Qwen-32B", 131_072),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 131_072),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", 131_072),
        ("moonshotai/Kimi-Dev-72B", 131_072),
        ("Qwen/Qwen2.5-7B", 131_072),
        ("Qwen/Qwen2.5-7B-Instruct", 32_768),
        ("Qwen/Qwen2.5-0.5B", 32_768),
        ("Qwen2-7B-Instruct", 32_768),
        ("Qwen/Qwen2.5-14B-Instruct-1M", 1_010_000),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", 32_768),
        ("Qwen/QwQ-32B", 40_960),
        ("Qwen/QwQ-32B-Preview", 32_768),
        ("Qwen/Qwen3-8B", 40_960),
        ("Qwen/Qwen3-8B-Base", 32_768),
        ("Qwen/Qwen3-4B-Thinking-2507", 262_144),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 262_144),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-AWQ", 262_144),
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072),
        ("lmsys/vicuna-7b-v1.5", 4_096),
        ("01-ai/Yi-1.5-34B-Chat-16K", 16_384),
        ("01-ai/Yi-34B-200K", 200_000),
    ],
)
def test_window_is_the_checkpoints_not_its_geometrys(checkpoint: str, window: int) -> None:
    assert spec_of(checkpoint).window == window


@pytest.mark.parametrize("name", ["Qwen3-8B-2601", "Qwen3-8B-Instruct", "nvidia/AceMath-7B-Instruct", "Yi-6B-it"])
def test_window_of_a_checkpoint_known_by_its_geometry_alone_is_asked_for(name: str) -> None:
    spec = spec_of(name)

    with pytest.raises(ConfigError, match=rf"the window of {name} is not known.*--max-model-len.*config\.json"):
        _ = spec.window


@pytest.mark.parametrize(
    ("ending", "weights"),
    [
        ("FP8", "fp8"), ("FP8-dynamic", "fp8"), ("FP8-Dynamic", "fp8"), ("FP8-block", "fp8"), ("FP8-KV", "fp8"),
        ("FP8-W8A8", "fp8"), ("W8A8-FP8", "fp8"), ("bnb-4bit", "int4"), ("unsloth-bnb-4bit", "int4"),
        ("BNB-NF4", "int4"),
        ("AWQ", "int4"), ("AWQ-INT4", "int4"), ("AWQ-4bit", "int4"), ("AWQ-8bit", "int8"), ("GPTQ", "int4"),
        ("GPTQ-Int4", "int4"), ("GPTQ-Int8", "int8"), ("GPTQ-Int4-Int8Mix", "int4"), ("quantized.w4a16", "int4"),
        ("quantized.w8a8", "int8"), ("quantized.w8a16", "int8"), ("W4A16-G128", "int4"), ("NVFP4", "int4"),
        ("NVFP4A16", "int4"), ("NVFP4-FP8-KV", "int4"), ("FP4", "int4"), ("MXFP4", "int4"), ("GGUF", "int4"),
        ("Q4_K_M", "int4"), ("Q8_0", "int8"), ("4bit", "int4"), ("4bit-DWQ", "int4"), ("8bit-gs32", "int8"),
        ("int4-AutoRound", "int4"), ("bf16", None),
    ],
)  # fmt: skip
def test_quantised_ending_keeps_the_checkpoint_and_states_its_weights(ending: str, weights: str | None) -> None:
    name = f"someone/Qwen3-4B-Instruct-2507-{ending}"

    assert (spec_of(name).name, spec_of(name).window) == ("Qwen/Qwen3-4B", 262_144)
    assert weights_in_name(name) == weights


@pytest.mark.parametrize("name", ["phi-4", "Llama-2-7b-chat-hf", "Mixtral-8x7B-v0.1", "Phi-3-mini-128k-instruct"])
def test_name_without_a_quantised_ending_states_no_weights(name: str) -> None:
    assert weights_in_name(name) is None
    assert spec_of(name).window > 0


@pytest.mark.parametrize(
    "name",
    ["RTX 5000 Ada Generation", "RTX 6000", "A10", "L20", "RTX 4090 D", "RTX 4090 Laptop GPU", "RTX 3090 Ti",
     "RTX 4090 48GB", "H200 NVL", "GH200", "H20", "MI325X", "RTX PRO 6000 Blackwell Max-Q Workstation Edition", "GPU"],
)  # fmt: skip
def test_word_that_tells_cards_apart_is_never_dropped(name: str) -> None:
    with pytest.raises(ConfigError, match="is not in the catalogue"):
        find_gpu(name)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("A10", "a10g-24g"), ("RTX 6000", "rtx-pro-6000-96g")],
)
def test_unknown_card_suggests_the_nearest(name: str, suggested: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{suggested}'"):
        find_gpu(name)


def test_rtx_6000_ada_is_its_own_card() -> None:
    ada, pro = find_gpu("NVIDIA RTX 6000 Ada Generation"), find_gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition")
    assert (ada.id, ada.memory_bytes, ada.bandwidth) == ("rtx-6000-ada-48g", 48 * 1024**3, 960e9)
    assert (pro.id, pro.memory_bytes) == ("rtx-pro-6000-96g", 96 * 1024**3)


@pytest.mark.parametrize(
    ("name", "gpu_id", "gib"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-96g", 96),
        ("NVIDIA H100 80GB HBM3", "h100-80g-sxm", 80),
        ("H100 NVL", "h100-94g-nvl", 94),
        ("NVIDIA A100 80GB PCIe", "a100-80g-pcie", 80),
        ("A6000", "rtx-a6000-48g", 48),
        ("NVIDIA A10G", "a10g-24g", 24),
        ("AMD Instinct MI300X", "mi300x-192g", 192),
        ("GB200", "gb200-nvl72-185g", 185),
        ("B300", "b300-288g-sxm", 269),
    ],
)
def test_driver_names_mean_their_card(name: str, gpu_id: str, gib: int) -> None:
    gpu = find_gpu(name)

    assert (gpu.id, gpu.memory_bytes) == (gpu_id, gib * 1024**3)
