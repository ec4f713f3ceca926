"""Where weights come from: a source hands out tensors by their Hugging Face names."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch

from engine.errors import ModelLoadError
from engine.model_spec import ModelSpec


class WeightSource(Protocol):
    """Named tensors, read one at a time so that no second copy of the model is ever held."""

    @property
    def origin(self) -> str:
        """What to name in errors: a directory, a file, a built-in model."""
        ...

    def read(self, name: str) -> torch.Tensor | None:
        """The tensor `name` on the CPU in its stored type, None if the source has none of that name."""
        ...


class WeightReader:
    """Reads tensors of expected shapes into the model's type and device."""

    def __init__(self, source: WeightSource, *, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor `name`. Raises `ModelLoadError` if it is missing, of another shape or not of floats."""
        stored = self._source.read(name)
        if stored is None:
            raise ModelLoadError(f"{self._source.origin}: tensor {name} is missing. Is the checkpoint complete?")
        if tuple(stored.shape) != shape:
            raise ModelLoadError(
                f"{self._source.origin}: tensor {name} has shape {list(stored.shape)}, "
                f"config.json implies {list(shape)}"
            )
        if not stored.is_floating_point():
            raise ModelLoadError(
                f"{self._source.origin}: tensor {name} has type {stored.dtype}; only float checkpoints are supported"
            )
        return stored.to(device=self._device, dtype=self._dtype)

    def vector(self, module: str, size: int) -> torch.Tensor:
        """The weight of a norm."""
        return self.tensor(module + ".weight", (size,))


class MappingSource:
    """Tensors that are already in memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], origin: str) -> None:
        self._tensors = tensors
        self._origin = origin

    @property
    def origin(self) -> str:
        return self._origin

    def read(self, name: str) -> torch.Tensor | None:
        return self._tensors.get(name)


class SeededSource:
    """Reproducible random weights: the same numbers on every machine, thread count and library version.

    Each tensor has its own Philox stream keyed by seed and name; Philox's raw bits are part of NumPy's compatibility
    promise and the conversion to floats is ours. Matrices are uniform with standard deviation `1 / sqrt(fan_in)`, so
    that activations keep their size; the output projection is wider, so that greedy decoding has few near-ties.
    """

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        self._shapes = tensor_shapes(spec)
        self._name = spec.name
        self._is_tied = spec.tie_word_embeddings
        self._seed = seed

    @property
    def origin(self) -> str:
        return f"built-in model {self._name!r}"

    def read(self, name: str) -> torch.Tensor | None:
        shape = self._shapes.get(name)
        if shape is None:
            return None
        uniform = torch.from_numpy(_uniform(f"{self._seed}/{self._name}/{name}", math.prod(shape))).view(shape)
        if name.endswith("norm.weight"):
            return 1.0 + 0.2 * uniform
        if len(shape) == 1:
            return 0.2 * uniform
        # A tied embedding must be small beside the layers' output, or every token would predict itself.
        deviation = {
            "model.embed_tokens.weight": 0.01 if self._is_tied else 1.0,
            "lm_head.weight": 4.0 / math.sqrt(shape[1]),
        }
        return uniform * (deviation.get(name, 1.0 / math.sqrt(shape[1])) * math.sqrt(3.0))


def _uniform(key: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """`count` float32 numbers in [-1, 1) from the stream of `key`."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    raw = np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(count)
    return ((raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23)) - np.float32(1.0)


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every tensor of a dense model of this geometry."""
    hidden, wide = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, hidden)}
    for index in range(spec.num_layers):
        attention, mlp = f"model.layers.{index}.self_attn.", f"model.layers.{index}.mlp."
        for name, size in (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)):
            shapes[f"{attention}{name}.weight"] = (size, hidden)
            if spec.qkv_bias:
                shapes[f"{attention}{name}.bias"] = (size,)
        shapes[f"{attention}o_proj.weight"] = (hidden, q_size)
        if spec.output_bias:
            shapes[f"{attention}o_proj.bias"] = (hidden,)
        if spec.qk_norm:
            shapes |= {f"{attention}q_norm.weight": (spec.head_dim,), f"{attention}k_norm.weight": (spec.head_dim,)}
        for name, rows, columns in (
            ("gate_proj", wide, hidden),
            ("up_proj", wide, hidden),
            ("down_proj", hidden, wide),
        ):
            shapes[f"{mlp}{name}.weight"] = (rows, columns)
            if spec.mlp_bias:
                shapes[f"{mlp}{name}.bias"] = (rows,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{index}.{name}.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    return shapes
