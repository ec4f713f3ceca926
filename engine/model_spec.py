"""Geometry of a decoder-only model: everything that sizes and shapes need, nothing that needs torch.

One frozen `ModelSpec` comes from a Hugging Face `config.json`, from a GGUF header, from the catalogue or from code, and
the loader, the memory model, the cost model and the planner all read the same one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from engine.config import Dtype
from engine.errors import ConfigError, ModelLoadError

DTYPE_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per element."""

RopeKind = Literal["default", "linear", "llama3"]
_ROPE_ALIASES = {"default": "default", "linear": "linear", "llama3": "llama3", "none": "default"}

SUPPORTED_ARCHITECTURES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""`architectures[0]` of a config.json -> family; SmolLM and SmolLM2 are Llama models by their own account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding."""

    theta: float = 10_000.0
    """Base of the geometric series of wavelengths."""
    kind: RopeKind = "default"
    """`linear` divides positions by `factor`; `llama3` divides low frequencies only (Llama 3.1)."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int | None = None
    """Context length of the pre-training; `llama3` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of a Llama-family decoder. Counts are per model, not per device."""

    name: str
    family: str
    """`llama`, `mistral`, `qwen2`, `qwen3`; a catalogue entry may name a family that only the planner knows."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    """Longest sequence the positions were trained for, tokens."""
    tie_word_embeddings: bool = False
    """The output projection is the embedding matrix."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias of the attention output projection."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over head_dim of each query and key head (Qwen3)."""
    rms_norm_eps: float = 1e-6
    rope: RopeSpec = field(default_factory=RopeSpec)
    sliding_window: int | None = None
    """Attention reaches back this many tokens. The engine runs such a model up to this length only."""
    dtype: Dtype = "bfloat16"
    """Element type of the checkpoint."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    num_experts: int | None = None
    """Mixture of experts: feed-forward blocks per layer (planning only)."""
    num_experts_per_token: int | None = None
    expert_intermediate_size: int | None = None
    unknown_window_of: str | None = None
    """The checkpoint that was asked for, where only its geometry is known: `max_position` is then another's."""

    @property
    def window(self) -> int:
        """Return the longest sequence of the checkpoint. Raises `ConfigError` where only its geometry is known."""
        if self.unknown_window_of is not None:
            raise ConfigError(
                f"max_model_len: the window of {self.unknown_window_of} is not known, only its geometry (that of "
                f"{self.name}). Set --max-model-len (engine.max_model_len), or give a directory with its config.json"
            )
        return self.max_position

    @property
    def num_parameters(self) -> int:
        """Weights of the whole model, tied embeddings counted once."""
        return self.num_embedding_parameters + self.num_layers * self.num_layer_parameters + self.hidden_size

    @property
    def num_embedding_parameters(self) -> int:
        """Embedding plus, if not tied, output projection."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def num_layer_parameters(self) -> int:
        """One decoder layer: attention, feed-forward (all experts and their router), norms."""
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * q_size + 2 * kv_size)
        attention += (q_size + 2 * kv_size) * self.qkv_bias + self.hidden_size * self.output_bias
        attention += 2 * self.head_dim * self.qk_norm
        if self.num_experts:
            width = self.expert_intermediate_size or self.intermediate_size
            mlp = self.num_experts * (3 * self.hidden_size * width + self.hidden_size)
        else:
            mlp = 3 * self.hidden_size * self.intermediate_size
            mlp += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        return attention + mlp + 2 * self.hidden_size

    def weight_bytes(self, dtype: Dtype | None = None) -> int:
        """Bytes of all weights in `dtype` (default: the checkpoint's)."""
        return self.num_parameters * DTYPE_BYTES[dtype or self.dtype]

    @property
    def max_runnable_len(self) -> int:
        """Longest sequence the engine computes exactly: within the positions and within the sliding window."""
        return min(self.max_position, self.sliding_window or self.max_position)


def load_spec(directory: Path) -> ModelSpec:
    """The spec of a Hugging Face model directory.

    Raises `ModelLoadError` if `config.json` is missing, is not JSON or describes a model that we cannot run.
    """
    path = directory / "config.json"
    return spec_from_hf_config(read_config(path), name=directory.name, origin=str(path))


def read_config(path: Path) -> dict[str, Any]:
    """Return the object in a config.json. Raises `ModelLoadError` for a file that is missing or holds none."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: not found. A model directory holds config.json and *.safetensors") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{path}: must be a JSON object (got {type(config).__name__})")
    return config


def spec_from_hf_config(config: Mapping[str, Any], *, name: str, origin: str = "config.json") -> ModelSpec:
    """The spec that a Hugging Face config describes; `origin` is named in errors.

    Understands both spellings of rotary parameters (`rope_parameters`, or `rope_theta` with `rope_scaling`).
    Raises `ModelLoadError` for an unsupported architecture, a missing field or a field out of range.
    """
    reader = ConfigReader(config, origin)
    family = _family(config, origin)
    hidden_size, num_heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    num_kv_heads = reader.count("num_key_value_heads", default=num_heads)
    if config.get("head_dim") is None and hidden_size % num_heads:
        raise ModelLoadError(
            f"{origin}: head_dim is missing and hidden_size {hidden_size} is no multiple of {num_heads}"
        )
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelLoadError(f"{origin}: hidden_act must be silu (got {config['hidden_act']!r})")
    if config.get("quantization_config"):
        raise ModelLoadError(f"{origin}: quantized checkpoints are not supported. Use a plain safetensors or GGUF file")
    attention_bias = bool(config.get("attention_bias", False))
    max_position = reader.count("max_position_embeddings", default=2048)
    spec = ModelSpec(
        name=name,
        family=family,
        num_layers=reader.count("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=reader.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=reader.count("head_dim", default=max(1, hidden_size // num_heads)),
        vocab_size=reader.count("vocab_size"),
        max_position=max_position,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=True if family == "qwen2" else attention_bias,
        output_bias=False if family == "qwen2" else attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config, origin, max_position),
        sliding_window=windowed_layers(config, family),
        dtype=_dtype(config, origin),
        bos_token_id=_first(config.get("bos_token_id")),
        eos_token_ids=_all(config.get("eos_token_id")),
    )
    check_head_sharing(spec, origin)
    return spec


def check_head_sharing(spec: ModelSpec, origin: str) -> None:
    """Raise `ModelLoadError` where KV heads are not shared evenly."""
    if spec.num_heads % spec.num_kv_heads:
        raise ModelLoadError(f"{origin}: {spec.num_heads} query heads cannot share {spec.num_kv_heads} KV heads evenly")


def hf_config(spec: ModelSpec) -> dict[str, Any]:
    """The `config.json` that describes `spec`: the inverse of `spec_from_hf_config`."""
    rope: dict[str, Any] = {"rope_type": spec.rope.kind, "rope_theta": spec.rope.theta}
    if spec.rope.kind != "default":
        rope["factor"] = spec.rope.factor
    if spec.rope.kind == "llama3":
        rope |= {
            "low_freq_factor": spec.rope.low_freq_factor,
            "high_freq_factor": spec.rope.high_freq_factor,
            "original_max_position_embeddings": spec.rope.original_max_position,
        }
    architecture = next(key for key, family in SUPPORTED_ARCHITECTURES.items() if family == spec.family)
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": spec.family,
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "mlp_bias": spec.mlp_bias,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_parameters": rope,
        "sliding_window": spec.sliding_window,
        "use_sliding_window": spec.sliding_window is not None,
        "dtype": spec.dtype,
        "bos_token_id": spec.bos_token_id,
        "eos_token_id": list(spec.eos_token_ids) if len(spec.eos_token_ids) > 1 else _first(list(spec.eos_token_ids)),
    }
    if spec.family != "qwen2":
        config["attention_bias"] = spec.qkv_bias
    return config


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """Reads positive whole numbers out of a config, naming file and field when they are not."""

    config: Mapping[str, Any]
    origin: str

    def count(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"{self.origin}: {key} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelLoadError(f"{self.origin}: {key} must be a whole number of at least 1 (got {value!r})")
        return value


def _family(config: Mapping[str, Any], origin: str) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in SUPPORTED_ARCHITECTURES:
            return SUPPORTED_ARCHITECTURES[name]
    if not names and config.get("model_type") in SUPPORTED_ARCHITECTURES.values():
        return str(config["model_type"])
    raise ModelLoadError(
        f"{origin}: architecture {', '.join(map(str, names)) or config.get('model_type')!r} is not supported. "
        f"Supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
    )


def _rope(config: Mapping[str, Any], origin: str, max_position: int) -> RopeSpec:
    if float(config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelLoadError(f"{origin}: partial_rotary_factor must be 1 (got {config['partial_rotary_factor']!r})")
    raw = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = _ROPE_ALIASES.get(str(raw.get("rope_type", raw.get("type", "default"))))
    if kind is None:
        raise ModelLoadError(
            f"{origin}: rope type {raw.get('rope_type', raw.get('type'))!r} is not supported. "
            f"Supported: {', '.join(get_args(RopeKind))}"
        )
    return RopeSpec(
        theta=float(raw.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        kind=cast("RopeKind", kind),
        factor=float(raw.get("factor", 1.0)),
        low_freq_factor=float(raw.get("low_freq_factor", 1.0)),
        high_freq_factor=float(raw.get("high_freq_factor", 4.0)),
        original_max_position=int(raw.get("original_max_position_embeddings") or max_position)
        if kind == "llama3"
        else None,
    )


def windowed_layers(config: Mapping[str, Any], family: str) -> int | None:
    """Qwen models carry a window that is off unless `use_sliding_window` says otherwise."""
    window = config.get("sliding_window")
    if window is None or (family.startswith("qwen") and not config.get("use_sliding_window", False)):
        return None
    return int(window)


def _dtype(config: Mapping[str, Any], origin: str) -> Dtype:
    value = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if value not in DTYPE_BYTES:
        raise ModelLoadError(f"{origin}: dtype must be one of {', '.join(DTYPE_BYTES)} (got {value!r})")
    return cast("Dtype", value)


def _all(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, (list, tuple)) else (int(value),)


def _first(value: Any) -> int | None:
    ids = _all(value)
    return ids[0] if ids else None
