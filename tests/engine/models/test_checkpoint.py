from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ModelLoadError
from engine.model_spec import load_spec
from engine.models.builtin import BUILTIN_SPECS
from engine.models.checkpoint import INDEX_FILE, SafetensorsSource, save_model
from engine.models.decoder import Decoder
from engine.models.weights import MappingSource, SeededSource, WeightSource, tensor_shapes

SPEC = BUILTIN_SPECS["tiny"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_model(SPEC, SeededSource(SPEC, seed=0), tmp_path)
    return tmp_path


def load(source: WeightSource) -> Decoder:
    return Decoder(SPEC, source, dtype=torch.float32, device=torch.device("cpu"))


def test_saved_model_reads_back_equal(directory: Path) -> None:
    source = SafetensorsSource(directory)

    assert load_spec(directory).num_parameters == SPEC.num_parameters
    for name in tensor_shapes(SPEC):
        expected = SeededSource(SPEC, seed=0).read(name)
        actual = source.read(name)
        assert expected is not None
        assert actual is not None
        assert torch.equal(actual, expected)


def test_sharded_model_reads_all_shards(directory: Path) -> None:
    whole = SafetensorsSource(directory)
    names = sorted(tensor_shapes(SPEC))
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    tensors = {name: whole.read(name) for name in names}
    (directory / "model.safetensors").unlink()
    for file, part in shards.items():
        save_file({name: tensor for name in part if (tensor := tensors[name]) is not None}, directory / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))

    load(SafetensorsSource(directory))

    (directory / "b.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"shard b\.safetensors of 2 is missing"):
        SafetensorsSource(directory)
    (directory / INDEX_FILE).write_text("{}")
    with pytest.raises(ModelLoadError, match="cannot be read as an index"):
        SafetensorsSource(directory)


def test_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no \*\.safetensors"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("num_bytes", [0, 4, 5000])
def test_truncated_file_is_named(directory: Path, num_bytes: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])

    with pytest.raises(ModelLoadError, match=r"model\.safetensors: cannot be read as safetensors"):
        SafetensorsSource(directory)


def tensors_with(name: str, tensor: torch.Tensor | None) -> MappingSource:
    seeded = SeededSource(SPEC, seed=0)
    found = {key: seeded.read(key) for key in tensor_shapes(SPEC)} | {name: tensor}
    return MappingSource({key: value for key, value in found.items() if value is not None}, "a file")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (None, "tensor model.layers.1.mlp.up_proj.weight is missing"),
        (torch.zeros(352, 64), r"up_proj.weight has shape \[352, 64\], config.json implies \[352, 128\]"),
        (torch.zeros(352, 128, dtype=torch.int8), "has type torch.int8; only float"),
    ],
)
def test_wrong_tensor_is_named(tensor: torch.Tensor | None, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(tensors_with("model.layers.1.mlp.up_proj.weight", tensor))


def test_seeded_weights_are_the_same_everywhere() -> None:
    """Literals: another library version or machine must not change the built-in models."""
    weight = SeededSource(SPEC, seed=0).read("model.layers.0.mlp.down_proj.weight")

    assert weight is not None
    assert weight.shape == (128, 352)
    assert weight[0, :3].tolist() == pytest.approx([0.054216024, -0.070551127, -0.0860769], abs=1e-7)
    assert weight.std().item() == pytest.approx(352**-0.5, rel=0.02)


def test_seeded_weights_differ_by_seed_and_name() -> None:
    read = [
        SeededSource(SPEC, seed=seed).read(f"model.layers.{i}.mlp.up_proj.weight") for seed in (0, 1) for i in (0, 1)
    ]

    firsts = {tensor[0, 0].item() for tensor in read if tensor is not None}
    assert len(firsts) == 4
