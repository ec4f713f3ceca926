"""Weights in safetensors files: reading a directory of them, and writing one."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from engine.errors import ModelLoadError
from engine.model_spec import ModelSpec, hf_config
from engine.models.weights import WeightSource, tensor_shapes

INDEX_FILE = "model.safetensors.index.json"


class SafetensorsSource:
    """The `*.safetensors` of a directory: one file, or shards with an index."""

    def __init__(self, directory: Path) -> None:
        """Raises `ModelLoadError` for a directory without weights, a missing shard, or a damaged file or index."""
        self._directory = directory
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}  # tensor name -> open file
        for path in _weight_files(directory):
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(
                    f"{path}: cannot be read as safetensors ({error}). Is it complete? Copy or download it again"
                ) from error
            self._files |= dict.fromkeys(file.keys(), file)

    @property
    def origin(self) -> str:
        return str(self._directory)

    def read(self, name: str) -> torch.Tensor | None:
        file = self._files.get(name)
        if file is None:
            return None
        tensor: torch.Tensor = file.get_tensor(name)
        return tensor


def _weight_files(directory: Path) -> list[Path]:
    index = directory / INDEX_FILE
    if not index.is_file():
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise ModelLoadError(f"{directory}: has no *.safetensors. Other weight formats are not supported")
        return files
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{index}: cannot be read as an index of shards ({error!r})") from error
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise ModelLoadError(f"{directory}: shard {missing[0]} of {len(names)} is missing. Copy or download it again")
    return [directory / name for name in names]


def save_model(spec: ModelSpec, source: WeightSource, directory: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write `config.json` and `model.safetensors`, which transformers reads too. `dtype` converts (default: as stored).

    Raises `ModelLoadError` if `source` lacks one of the model's tensors.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name in tensor_shapes(spec):
        tensor = source.read(name)
        if tensor is None:
            raise ModelLoadError(f"{source.origin}: tensor {name} is missing")
        tensors[name] = tensor.to(dtype or tensor.dtype).contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = hf_config(spec)
    if dtype is not None:
        config["dtype"] = str(dtype).removeprefix("torch.")
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
