from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelLoadError
from engine.model_spec import hf_config, load_spec, spec_from_hf_config
from engine.models.builtin import BUILTIN_SPECS

LLAMA_31_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
}
QWEN25_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}


def test_num_parameters_of_published_models_equals_their_checkpoints() -> None:
    assert spec_from_hf_config(LLAMA_31_8B, name="x").num_parameters == 8_030_261_248
    assert spec_from_hf_config(QWEN25_7B, name="x").num_parameters == 7_615_616_512


def test_weight_bytes_in_other_type_counts_its_elements() -> None:
    spec = spec_from_hf_config(LLAMA_31_8B, name="x")

    assert spec.weight_bytes() == 2 * 8_030_261_248
    assert spec.weight_bytes("float32") == 4 * 8_030_261_248


def test_spec_llama3_scaling_reads_all_parameters() -> None:
    spec = spec_from_hf_config(LLAMA_31_8B, name="x")

    assert (spec.rope.kind, spec.rope.theta, spec.rope.factor) == ("llama3", 500_000.0, 8.0)
    assert spec.rope.original_max_position == 8192
    assert spec.eos_token_ids == (128001, 128008, 128009)


def test_spec_new_rope_spelling_equals_old() -> None:
    old = LLAMA_31_8B
    new = {key: value for key, value in old.items() if not key.startswith("rope")}
    new["rope_parameters"] = {**old["rope_scaling"], "rope_theta": 500000.0}

    assert spec_from_hf_config(new, name="x") == spec_from_hf_config(old, name="x")


def test_spec_linear_scaling_in_oldest_spelling_is_understood() -> None:
    spec = spec_from_hf_config({**LLAMA_31_8B, "rope_scaling": {"type": "linear", "factor": 4}}, name="x")

    assert (spec.rope.kind, spec.rope.factor) == ("linear", 4.0)


def test_spec_qwen_window_counts_only_where_switched_on() -> None:
    assert spec_from_hf_config(QWEN25_7B, name="x").sliding_window is None
    windowed = spec_from_hf_config({**QWEN25_7B, "use_sliding_window": True, "sliding_window": 4096}, name="x")
    assert windowed.max_runnable_len == 4096


def test_spec_qwen2_has_bias_on_qkv_only() -> None:
    spec = spec_from_hf_config(QWEN25_7B, name="x")

    assert (spec.qkv_bias, spec.output_bias, spec.qk_norm) == (True, False, False)


@pytest.mark.parametrize("name", BUILTIN_SPECS)
def test_hf_config_of_builtin_reads_back_as_the_same_spec(name: str) -> None:
    spec = BUILTIN_SPECS[name]

    assert spec_from_hf_config(hf_config(spec), name=name) == spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, r"MambaForCausalLM.*Supported: LlamaForCausalLM, Mistral"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": 0}, r"vocab_size must be .* at least 1 \(got 0\)"),
        ({"num_key_value_heads": 5}, "32 query heads cannot share 5 KV heads"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported. Supported: default, linear"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized checkpoints"),
        ({"torch_dtype": "int8"}, "dtype must be one of"),
    ],
)
def test_spec_what_cannot_run_is_refused_with_reason(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        spec_from_hf_config({**LLAMA_31_8B, **change}, name="x")


def test_load_spec_missing_or_broken_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json: not found"):
        load_spec(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json: cannot be read as JSON"):
        load_spec(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(ModelLoadError, match="must be a JSON object"):
        load_spec(tmp_path)
