"""Geometry, window and weight type of a checkpoint from its config.json alone, be it one that the engine runs or not.

What the memory model does not count is refused by the config's own facts, never by a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.catalog.model_names import weights_in_name
from engine.errors import ModelLoadError
from engine.model_spec import ConfigReader, ModelSpec, check_head_sharing, read_config, windowed_layers

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where configs of multimodal models keep that of their language model."""
TEXT_PART = " (text part)"
"""Ending of the name of a spec that leaves out what is not the language model."""
_STATE_SPACE = ("ssm_cfg", "ssm_state_size", "mamba_d_state", "mamba_n_heads", "hybrid_override_pattern",
                "linear_num_value_heads", "linear_attn_config", "attn_layer_period", "layers_block_type")  # fmt: skip
_SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts",
                   "shared_expert_intermediate_size", "shared_intermediate_size")  # fmt: skip
_UNGATED = frozenset({"gpt_neox", "gptj", "opt", "phi", "falcon", "starcoder2", "gpt_bigcode", "nemotron", "persimmon"})
_BIASED = frozenset({"qwen2", "qwen2_moe"})
_TIED = ("gemma", "cohere")
"""Families whose configs leave tie_word_embeddings out and mean true."""


def load_planned_spec(path: Path) -> ModelSpec:
    """Return what is planned with, from a model directory or its config.json.

    Raises `ModelLoadError` for a file that is missing or broken, a field out of range, and what cannot be counted.
    """
    path = path if path.suffix == ".json" else path / "config.json"
    return planned_spec(read_config(path), name=path.resolve().parent.name, origin=str(path))


def planned_spec(config: Mapping[str, Any], *, name: str, origin: str = "config.json") -> ModelSpec:
    """Return the spec of a Hugging Face config. Raises `ModelLoadError` as `load_planned_spec` does."""
    parts = _parts(config)
    if len(parts) > 1:
        name, config = f"{name}{TEXT_PART}", {key: value for part in parts for key, value in part.items()}
    uncounted = _uncounted(config)
    if uncounted is not None:
        raise ModelLoadError(
            f"{origin}: {uncounted}, which the memory model does not count: its figures would be wrong"
        )
    reader = ConfigReader(config, origin)
    family = str(config.get("model_type") or "llama").removesuffix("_text")
    num_experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    width = reader.count("moe_intermediate_size", default=config.get("intermediate_size"))
    num_heads = reader.count("num_attention_heads")
    window = config.get("max_position_embeddings")
    spec = ModelSpec(
        name=name,
        family=family,
        num_layers=reader.count("num_hidden_layers"),
        hidden_size=reader.count("hidden_size"),
        intermediate_size=reader.count("intermediate_size", default=width),
        num_heads=num_heads,
        num_kv_heads=reader.count("num_key_value_heads", default=num_heads),
        head_dim=reader.count("head_dim", default=max(1, reader.count("hidden_size") // num_heads)),
        vocab_size=reader.count("vocab_size"),
        max_position=1 if window is None else _window(config, reader.count("max_position_embeddings")),
        unknown_window_of=name if window is None else None,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", family.startswith(_TIED))),
        qkv_bias=family in _BIASED or bool(config.get("attention_bias", False)),
        qk_norm=family.startswith("qwen3"),
        sliding_window=_sliding_window(config, family),
        num_experts=num_experts if num_experts and num_experts > 1 else None,
        num_experts_per_token=_first(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
        expert_intermediate_size=width if num_experts and num_experts > 1 else None,
    )
    check_head_sharing(spec, origin)
    return spec


def _parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a config and the language part inside it, as deep as it lies; what is inside says more."""
    for key in _NESTED:
        if isinstance(config.get(key), dict):
            return [config, *_parts(config[key])]
    return [config]


def stated_quantization(model: str) -> str | None:
    """Return the weight type of a checkpoint: as its config.json says where the path exists, else as its name says.

    None: 16 bits, or a path that cannot be read, which loading it reports. Raises as `quantization_of` does.
    """
    path = Path(model).expanduser()
    if not path.exists():
        return weights_in_name(model)
    path = path if path.suffix == ".json" else path / "config.json"
    try:
        config = read_config(path)
        if not any(part.get("quantization_config") for part in _parts(config)):  # older files of ModelOpt stand beside
            config = {"quantization_config": read_config(path.parent / "hf_quant_config.json").get("quantization")}
    except ModelLoadError:
        return None
    return quantization_of(config)


def quantization_of(config: Mapping[str, Any]) -> str | None:
    """Return the weight type of a config: `fp8`, `int8`, `int4` (any of 4 bits or fewer); None for 16 bits.

    Raises `ModelLoadError` for a method that does not say its bits.
    """
    stated = next((part["quantization_config"] for part in _parts(config) if part.get("quantization_config")), None)
    if stated is None:
        return None
    method = " ".join(str(stated.get(key, "")) for key in ("quant_method", "quant_algo", "quant_type")).lower()
    bits, is_float = _bits(stated)
    if bits is None:
        return _weights_of_method(method)
    if bits > 8:
        return None
    return "int4" if bits <= 4 else "fp8" if is_float or "fp8" in method else "int8"


def _weights_of_method(method: str) -> str:
    found = re.search(r"(nvfp4|mxfp4|fp4|nf4|int4)|(fp8|float8)|(int8)", method)
    kind = None if found is None else ("int4", "fp8", "int8")[found.lastindex - 1 if found.lastindex else 0]
    kind = kind or weights_in_name(f"model-{method.partition(' ')[0]}")
    if kind is None:
        raise ModelLoadError(
            f"quantization_config: method {method.strip()!r} does not say its bits. Name its weight type"
        )
    return kind


def _bits(stated: Mapping[str, Any]) -> tuple[int | None, bool]:
    """Return the bits of a weight where the config says them, at its top or in its first group, and whether it is a
    float."""
    for loaded in (4, 8):
        if stated.get(f"load_in_{loaded}bit") or stated.get(f"_load_in_{loaded}bit"):
            return loaded, False
    for key in ("bits", "w_bit", "wbits", "weight_bits", "nbits", "num_bits"):
        if isinstance(stated.get(key), (int, float)):
            return int(stated[key]), False
    groups = stated.get("config_groups") or {}
    for each in (*groups.values(), stated.get("global_quant_config") or {}, stated.get("quant_config") or {}):
        weights = each.get("weights") or each.get("weight") or each.get("weight_quant_params") or {}
        dtype = str(weights.get("dtype") or weights.get("type") or "")
        bits = weights.get("num_bits") or weights.get("nbits")
        if bits is None and dtype:
            bits = 4 if re.search(r"(int|fp|float|nf)4", dtype) else 8
        if bits is not None:
            return int(bits), "float" in dtype or "fp" in dtype
    return None, False


def _uncounted(config: Mapping[str, Any]) -> str | None:
    """Return what a model has that the memory model does not count, by the config's facts."""
    kinds = set(config.get("layer_types") or ())
    family = str(config.get("model_type") or "")
    for holds, what in (
        (config.get("kv_lora_rank"), f"caches one latent per token (MLA: kv_lora_rank {config.get('kv_lora_rank')})"),
        (any(config.get(key) for key in _STATE_SPACE) or kinds & {"linear_attention", "mamba", "mamba2", "conv"}
         or 0 in (config.get("attn_type_list") or ()) or "recurrent" in (config.get("block_types") or ())
         or "mamba" in family or "rwkv" in family, "has state-space or linear attention layers"),
        (config.get("is_encoder_decoder"), "is an encoder with a decoder"),
        (config.get("block_configs"), "has layers of different shapes (block_configs)"),
        (config.get("num_kv_shared_layers"), "shares the cache of some layers (num_kv_shared_layers)"),
        (_mixes_windows(config, kinds, family), "mixes full and windowed layers"),
        (config.get("v_head_dim") not in (None, config.get("head_dim")), "has keys and values of different widths"),
        (family in _UNGATED, f"has a feed-forward block without a gate ({family})"),
        (any(config.get(key) for key in _SHARED_EXPERTS), "has shared experts"),
        (config.get("first_k_dense_replace") or config.get("mlp_only_layers")
         or max(config.get("decoder_sparse_step") or 1, config.get("interleave_moe_layer_step") or 1) > 1,
         "has dense layers beside its experts"),
    ):  # fmt: skip
        if holds:
            return what
    return None


def _mixes_windows(config: Mapping[str, Any], kinds: set[str], family: str) -> bool:
    """Full and windowed layers in one model; Gemma 2's, every second layer, are counted."""
    if family.startswith("gemma2"):
        return False
    has_window = bool(config.get("sliding_window") or config.get("attention_chunk_size"))
    if kinds:
        return len(kinds & {"full_attention", "sliding_attention", "chunked_attention"}) > 1
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if family.startswith("qwen") and config.get("use_sliding_window"):
        return has_window and 0 < (config.get("max_window_layers") or 0) < (config.get("num_hidden_layers") or 0)
    return has_window and (bool(pattern) or family.startswith(("gemma3", "llama4", "cohere2", "gpt_oss")))


def _sliding_window(config: Mapping[str, Any], family: str) -> int | None:
    """Return the window of attention where one is on and shorter than the positions."""
    window = windowed_layers(config, family)
    if window is None or set(config.get("layer_types") or ()) == {"full_attention"}:
        return None
    if family.startswith("qwen") and (config.get("max_window_layers") or 0) >= config.get("num_hidden_layers", 0) > 0:
        return None
    return window if window < (config.get("max_position_embeddings") or window + 1) else None


def _window(config: Mapping[str, Any], positions: int) -> int:
    """Return the longest sequence as vLLM derives it (`_get_and_verify_max_len`): positions, scaled where rope is."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind in ("default", "su", "longrope", "llama3", "mrope", "proportional"):
        return positions
    start = rope.get("original_max_position_embeddings") if "yarn" in kind else None
    return int((start or positions) * float(rope.get("factor") or 1.0))


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    return next((int(config[name]) for name in names if isinstance(config.get(name), int)), None)
