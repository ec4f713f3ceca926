"""What can be planned from a config.json alone, and what is refused for a fact that it states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError, ModelLoadError
from engine.kv_geometry import KvGeometry
from engine.planned_config import planned_spec, quantization_of, stated_quantization
from engine.simulation import find_simulated_spec

DENSE: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip
MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936, "max_position_embeddings": 40960,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
    "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
OLMOE: dict[str, Any] = {
    "model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 50304, "max_position_embeddings": 4096,
    "num_experts": 64, "num_experts_per_tok": 8,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "head_dim": 256,
    "num_attention_heads": 8, "num_key_value_heads": 1, "vocab_size": 256000, "max_position_embeddings": 8192,
    "hidden_act": "gelu",
}  # fmt: skip
GEMMA2: dict[str, Any] = {
    "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "head_dim": 256,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 256000, "max_position_embeddings": 8192,
    "sliding_window": 4096, "layer_types": ["sliding_attention", "full_attention"] * 21,
}  # fmt: skip
PHI3: dict[str, Any] = {
    "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064, "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096, "sliding_window": 262144,
    "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
}  # fmt: skip
NESTED: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"], "torch_dtype": "bfloat16",
    "text_config": {**DENSE, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billions", "kv_bytes", "window"),
    [
        (DENSE, 7.62, 57_344, 32_768),
        (MOE, 30.5, 98_304, 40_960),
        (MIXTRAL, 46.7, 131_072, 32_768),
        (OLMOE, 6.92, 131_072, 4_096),
        (GEMMA, 2.51, 18_432, 8_192),
        (GEMMA2, 9.24, 344_064, 8_192),
        (PHI3, 3.82, 393_216, 131_072),
        (NESTED, 7.62, 57_344, 32_768),
    ],
)
def test_config_gives_the_published_size_cache_and_window(
    config: dict[str, Any], billions: float, kv_bytes: int, window: int
) -> None:
    spec = planned_spec(config, name="x")

    assert spec.num_parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert KvGeometry.of(spec, dtype="bfloat16", block_size=16).bytes_per_token == kv_bytes
    assert spec.window == window


@pytest.mark.parametrize(
    ("rope", "window"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131_072),
        ({"type": "yarn", "factor": 4.0}, 131_072),
        ({"rope_type": "dynamic", "factor": 2.0}, 65_536),
        ({"type": "linear", "factor": 2.0}, 65_536),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32_768),
        ({"type": "su", "long_factor": [1.0]}, 32_768),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, 32_768),
        (None, 32_768),
    ],
)
def test_window_follows_the_kind_of_rope_as_in_vllm(rope: dict[str, Any] | None, window: int) -> None:
    assert planned_spec({**DENSE, "rope_scaling": rope}, name="x").window == window


def test_config_without_positions_asks_for_the_window() -> None:
    config = {key: value for key, value in DENSE.items() if key != "max_position_embeddings"}

    with pytest.raises(ConfigError, match="--max-model-len"):
        _ = planned_spec(config, name="x").window


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_lora_rank": 512}, "one latent per token"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "state-space or linear attention"),
        ({"model_type": "mamba2"}, "state-space"),
        ({"mamba_d_state": 128}, "state-space"),
        ({"attn_type_list": [0, 0, 1]}, "state-space"),
        ({"layer_types": ["conv", "full_attention"]}, "state-space"),
        ({"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]}, "full and windowed"),
        ({"model_type": "gemma3_text", "sliding_window": 1024, "sliding_window_pattern": 6}, "full and windowed"),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 14}, "full and windowed"),
        ({"n_shared_experts": 1}, "shared experts"),
        ({"first_k_dense_replace": 1}, "dense layers beside its experts"),
        ({"head_dim": 192, "v_head_dim": 128}, "different widths"),
        ({"model_type": "starcoder2"}, "without a gate"),
        ({"is_encoder_decoder": True}, "encoder with a decoder"),
    ],
)
def test_config_is_refused_for_the_fact_that_cannot_be_counted(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{reason}.*does not count"):
        planned_spec({**DENSE, **change}, name="x")


@pytest.mark.parametrize("change", [{"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 14},
                                    {"layer_types": ["full_attention"] * 28, "sliding_window": None},
                                    {"n_shared_experts": 0, "shared_expert_intermediate_size": 0}])  # fmt: skip
def test_config_is_not_refused_for_a_fact_that_is_off(change: dict[str, Any]) -> None:
    assert planned_spec({**DENSE, **change}, name="x").sliding_window is None


@pytest.mark.parametrize(
    ("stated", "weights"),
    [
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "awq", "bits": 4, "zero_point": True}, "int4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "bitsandbytes", "_load_in_8bit": True, "bnb_4bit_compute_dtype": "float16"}, "int8"),
        ({"quant_method": "gptq", "bits": 8, "dtype": "float16"}, "int8"),
        ({"quant_method": "exl2", "bits": 4.0}, "int4"),
        ({"quant_method": "experts_int8"}, "int8"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}, "int4"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8DynamicActivationConfig"}}}, "fp8"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}, "int4"),
        ({"quant_method": "mxfp4"}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8"),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}}}, "int8"),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}, "int4"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8"),
        (None, None),
    ],
)  # fmt: skip
def test_quantization_config_states_the_weights(stated: dict[str, Any] | None, weights: str | None) -> None:
    config = {**DENSE, "quantization_config": stated}

    assert quantization_of(config) == weights
    assert planned_spec(config, name="x").num_layers == 28


def test_quantization_of_unknown_bits_is_asked_for() -> None:
    with pytest.raises(ModelLoadError, match="method 'vptq' does not say its bits"):
        quantization_of({"quantization_config": {"quant_method": "vptq"}})


def test_language_part_is_found_however_deep_it_lies() -> None:
    spec = planned_spec({"thinker_config": {"text_config": DENSE, "audio_config": {}}}, name="omni")

    assert (spec.name, spec.num_layers) == ("omni (text part)", 28)


def test_weights_of_a_file_beside_the_config_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))

    assert stated_quantization(str(tmp_path)) == "int4"


def test_directory_named_like_a_catalogue_model_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cfg" / "llama-3.1-8b"
    folder.mkdir(parents=True)
    config = {**DENSE, "model_type": "llama", "num_hidden_layers": 16, "num_attention_heads": 32, "hidden_size": 4096,
              "num_key_value_heads": 32}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)

    for name in ("cfg/llama-3.1-8b", "cfg/llama-3.1-8b/", str(folder), "cfg/llama-3.1-8b/config.json"):
        spec = find_simulated_spec(name)
        assert KvGeometry.of(spec, dtype="bfloat16", block_size=16).bytes_per_token == 262_144
        assert spec.name == "llama-3.1-8b"


@pytest.mark.parametrize("slash", ["", "/"])
def test_weights_of_a_directory_are_those_of_its_config_whatever_its_name(tmp_path: Path, slash: str) -> None:
    for name, stated, weights in (
        ("Qwen2.5-7B-AWQ", None, None),
        ("plain", {"quant_method": "awq", "bits": 4}, "int4"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**DENSE, "quantization_config": stated}))

        assert stated_quantization(f"{tmp_path / name}{slash}") == weights


@pytest.mark.parametrize("slash", ["", "/"])
def test_weights_of_a_name_do_not_hang_on_a_trailing_slash(slash: str) -> None:
    assert stated_quantization(f"Qwen/Qwen2.5-7B-Instruct-AWQ{slash}") == "int4"
