"""The control plane as machine code: the same modules, translated by mypyc, used while they match their sources.

`python -m engine.compiled` builds them into `build/` beside this file. Without them, with another Python than the one
that built them, or once a source or a built file differs by a byte, all modules run as they are written: slower, with
equal results. `WORKBENCH_PURE_PYTHON=1` asks for that.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

MODULES = (
    "engine.clock",
    "engine.core.admission",
    "engine.core.async_scheduler",
    "engine.core.block_hash",
    "engine.core.block_manager",
    "engine.core.block_pool",
    "engine.core.fingerprint",
    "engine.core.foresight",
    "engine.core.offers",
    "engine.core.plan",
    "engine.core.preemption",
    "engine.core.prefix_index",
    "engine.core.request_queue",
    "engine.core.scheduler",
    "engine.core.steady",
    "engine.engine_core",
    "engine.executor.cost_model.rank_operators",
    "engine.executor.cost_model.step",
    "engine.executor.cost_model.step_shape",
    "engine.executor.simulated",
    "engine.outputs",
    "engine.request",
    "engine.step_log",
)
"""What a simulated step runs through. Calls between them are bound when they are built, so all or none."""

ROOT = Path(__file__).parents[2]
"""Where the package `engine` lies."""
BUILD = Path(__file__).parent / "build"
MANIFEST = "manifest.json"
SUFFIX = EXTENSION_SUFFIXES[0]
"""Names this interpreter's kind of extension module."""


def source_of(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def digest(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def digests() -> dict[str, str]:
    """Module -> digest of its source."""
    return {module: digest(source_of(module)) for module in MODULES}


def is_current() -> bool:
    """Do the built modules match interpreter and sources, and are they as they were built?"""
    return bool(_built_files())


def _built_files() -> dict[str, Path]:
    """Module -> file, of a build that is current; else nothing."""
    try:
        manifest = json.loads((BUILD / MANIFEST).read_text(encoding="utf-8"))
        if manifest["suffix"] != SUFFIX or manifest["sources"] != digests():
            return {}
        files = {name: BUILD / name for name in manifest["files"]}
        if not files or any(digest(file) != manifest["files"][name] for name, file in files.items()):
            return {}
    except (OSError, ValueError, TypeError, LookupError):
        return {}
    return {name.removesuffix(SUFFIX): file for name, file in files.items()}


class _Finder:
    """Finds the built modules before their sources are found."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        return None if file is None else spec_from_file_location(name, file)


def use() -> None:
    """From now on the modules are imported as machine code, if it is there, current, and of this machine's kind."""
    files = {} if os.environ.get("WORKBENCH_PURE_PYTHON") else _built_files()
    if not files:
        return
    finder = _Finder(files)
    sys.meta_path.insert(0, finder)
    try:
        for name in files.keys() - set(MODULES):  # the library that holds the code of all
            import_module(name)
    except ImportError as error:
        sys.meta_path.remove(finder)
        sys.stderr.write(
            f"note: the compiled control plane cannot be loaded ({error}); it runs as Python, slower, with equal "
            f"results. To build it again: rm -r {BUILD}; python -m engine.compiled. "
            "To leave it: WORKBENCH_PURE_PYTHON=1\n"
        )


def is_used() -> bool:
    """Does this process run machine code?"""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)
