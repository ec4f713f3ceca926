"""Converts a GGUF file into a Hugging Face directory: dequantised once, so that every later load is quick."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from engine.errors import ModelLoadError
from engine.model_spec import ModelSpec, RopeSpec
from engine.models.checkpoint import save_model
from engine.models.gguf_tokenizer import write_tokenizer
from engine.models.weights import MappingSource

_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(file: Path, directory: Path, *, name: str) -> None:
    """Write `directory` (config, bfloat16 weights, tokenizer) from `file`; all of it or nothing.

    Raises `ModelLoadError` if the file is damaged, is not of the Llama architecture, or `gguf` is not installed.
    """
    reader = _open(file)
    spec = _spec(reader, file, name)
    source = MappingSource(_tensors(reader, spec, file), str(file))
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        save_model(spec, source, scratch, dtype=torch.bfloat16)
        write_tokenizer(reader, scratch)
        try:
            os.rename(scratch, directory)
        except OSError:
            if not (directory / "config.json").is_file():  # otherwise another process was faster: use its result
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _open(file: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ModelLoadError(f"{file}: reading GGUF needs the gguf package. Run: pip install gguf") from None
    try:
        return GGUFReader(file)
    except (ValueError, OSError, IndexError, KeyError, OverflowError) as error:
        raise ModelLoadError(f"{file}: cannot be read as GGUF ({error}). Is it complete?") from error


def field(reader: Any, key: str, default: Any = None) -> Any:
    """A metadata value, `default` if the file has none."""
    found = reader.get_field(key)
    return default if found is None else found.contents()


def _spec(reader: Any, file: Path, name: str) -> ModelSpec:
    architecture = field(reader, "general.architecture")
    names = {tensor.name for tensor in reader.tensors}
    if architecture != "llama":
        raise ModelLoadError(f"{file}: architecture {architecture!r} is not supported. Supported in GGUF: llama")
    if "rope_freqs.weight" in names or field(reader, "llama.rope.scaling.type", "none") != "none":
        raise ModelLoadError(f"{file}: scaled rotary positions in GGUF are not supported. Use the safetensors model")
    try:
        hidden_size, num_heads = field(reader, "llama.embedding_length"), field(reader, "llama.attention.head_count")
        eos = field(reader, "tokenizer.ggml.eos_token_id")
        return ModelSpec(
            name=name,
            family="llama",
            num_layers=int(field(reader, "llama.block_count")),
            hidden_size=int(hidden_size),
            intermediate_size=int(field(reader, "llama.feed_forward_length")),
            num_heads=int(num_heads),
            num_kv_heads=int(field(reader, "llama.attention.head_count_kv", num_heads)),
            head_dim=int(field(reader, "llama.attention.key_length", hidden_size // num_heads)),
            vocab_size=next(int(tensor.shape[1]) for tensor in reader.tensors if tensor.name == "token_embd.weight"),
            max_position=int(field(reader, "llama.context_length")),
            tie_word_embeddings="output.weight" not in names,
            rms_norm_eps=float(field(reader, "llama.attention.layer_norm_rms_epsilon")),
            rope=RopeSpec(theta=float(field(reader, "llama.rope.freq_base", 10_000.0))),
            dtype="bfloat16",
            bos_token_id=field(reader, "tokenizer.ggml.bos_token_id"),
            eos_token_ids=() if eos is None else (int(eos),),
        )
    except (TypeError, ValueError, StopIteration) as error:
        raise ModelLoadError(f"{file}: its metadata does not describe a whole Llama model ({error!r})") from error


def _tensors(reader: Any, spec: ModelSpec, file: Path) -> dict[str, torch.Tensor]:
    from gguf.quants import dequantize

    tensors = {}
    for stored in reader.tensors:
        name = _hf_name(stored.name)
        if name is None:
            raise ModelLoadError(f"{file}: tensor {stored.name} is not part of a plain Llama model")
        try:
            # A copy: unquantised tensors are views of the file's own read-only pages.
            weight = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
        except (NotImplementedError, ValueError) as error:
            raise ModelLoadError(f"{file}: tensor {stored.name} cannot be dequantised ({error})") from error
        if name.endswith("q_proj.weight"):
            weight = _halves_from_pairs(weight, spec.num_heads)
        elif name.endswith("k_proj.weight"):
            weight = _halves_from_pairs(weight, spec.num_kv_heads)
        tensors[name] = weight
    return tensors


def _hf_name(gguf_name: str) -> str | None:
    stem, _, kind = gguf_name.rpartition(".")
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{kind}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{kind}"
    return None


def _halves_from_pairs(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """GGUF rotates neighbouring features of a head, Hugging Face the first half against the second: reorder rows."""
    rows, columns = weight.shape
    paired = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return paired.transpose(1, 2).reshape(rows, columns)
