"""From a model's name to its geometry and its weights.

Importing this loads no torch: geometry is what the planner and the command line ask for.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from engine.config import ModelConfig
from engine.model_spec import ModelSpec, load_spec
from engine.models.builtin import BUILTIN_SPECS
from engine.models.location import SPEC_FILES, find_model_directory

if TYPE_CHECKING:
    from engine.models.weights import WeightSource


def find_spec(model: str) -> ModelSpec:
    """Geometry of a built-in model, a directory, a GGUF file, a packaged model or a hub id.

    Raises `ModelLoadError` if there is no such model or it is not one that we can run.
    """
    if model in BUILTIN_SPECS:
        return BUILTIN_SPECS[model]
    return dataclasses.replace(load_spec(find_model_directory(model, SPEC_FILES)), name=model)


def open_weights(config: ModelConfig) -> WeightSource:
    """The weights of `config.model`; `config.seed` picks those of a built-in model. Raises `ModelLoadError`."""
    from engine.models.checkpoint import SafetensorsSource
    from engine.models.weights import SeededSource

    if config.model in BUILTIN_SPECS:
        return SeededSource(BUILTIN_SPECS[config.model], config.seed)
    return SafetensorsSource(find_model_directory(config.model))
