"""Scenario files: read, overridden, validated; every problem becomes one line that says where and what."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from workbench.scenario.document import MAX_BYTES, Document, dotted, read_document
from workbench.scenario.document import Path as KeyPath
from workbench.scenario.engine_spec import engine_problems
from workbench.scenario.errors import ScenarioError, shown
from workbench.scenario.overrides import apply_override
from workbench.scenario.problems import describe
from workbench.scenario.schema import Scenario


def load_scenario(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Scenario:
    """The validated scenario in `path` after `overrides` (`a.b=c`).

    Raises `ScenarioError`, at most three lines, for whatever is wrong with the file or the overrides.
    """
    return parse_scenario(_read_text(path), source=str(path), overrides=overrides, directory=Path(path).parent)


def parse_scenario(
    text: str, *, source: str = "scenario", overrides: Sequence[str] = (), directory: Path | None = None
) -> Scenario:
    """Like `load_scenario`, from the YAML text; `source` names it in messages, paths in it start at `directory`."""
    document = _scenario_in(read_document(text, source))
    set_paths = [apply_override(document, override) for override in overrides]
    problems = [
        _line(document, ("engine", name) if name else ("engine",), rule)
        for name, rule in engine_problems(document.data.get("model"), _engine_section(document))
    ]
    _anchor_paths(document, set_paths, directory if directory is not None else Path())
    try:
        scenario = Scenario.model_validate(document.data)
    except ValidationError as error:
        raise ScenarioError(*problems, *describe(error, document, Scenario)) from None
    except RecursionError:
        raise ScenarioError(f"{source}: nested too deeply") from None
    problems += _missing_files(document)
    if problems:
        raise ScenarioError(*problems)
    return scenario


def _scenario_in(document: Document) -> Document:
    """The scenario of a plan file, which simulates the fleet that was planned; any other document as it is."""
    if not {"scenario", "deployment"} <= document.data.keys() or not isinstance(document.data["scenario"], dict):
        return document
    origins = {path[1:]: origin for path, origin in document.origins.items() if path[:1] == ("scenario",)}
    return Document(source=document.source, data=document.data["scenario"], origins=origins)


def _read_text(path: str | os.PathLike[str]) -> str:
    file = Path(path)
    if os.path.isdir(file):
        raise ScenarioError(f"{path}: is a directory. Name a scenario file, for example scenarios/quickstart.yaml")
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ScenarioError(
            f"{path}: no such file. Name a scenario file, for example scenarios/quickstart.yaml"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScenarioError(f"{shown(str(path))}: cannot be read ({reason})") from None
    if len(raw) > MAX_BYTES:
        raise ScenarioError(
            f"{path}: larger than 1 MiB, which no scenario is. Is it a trace? Name it in workload.arrivals"
        )
    if b"\0" in raw:
        raise ScenarioError(f"{path}: is a binary file, not YAML text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ScenarioError(
            f"{path}:{line}: not UTF-8 text (byte 0x{raw[error.start]:02x}). Save it as UTF-8"
        ) from None


def _engine_section(document: Document) -> dict[str, Any]:
    section = document.data.get("engine")
    return section if isinstance(section, dict) else {}


def _line(document: Document, path: KeyPath, rule: str) -> str:
    return f"{document.origin(path)}: {dotted(path)}: {rule}"


def _file_paths(document: Document) -> list[KeyPath]:
    """Where the document names data files."""
    workload = document.data.get("workload")
    if not isinstance(workload, dict):
        return []
    candidates: list[KeyPath] = [("workload", "arrivals", "path"), ("target", "profile")]
    classes = workload.get("classes")
    for index in range(len(classes) if isinstance(classes, list) else 0):
        names = ("input_tokens", "output_tokens", "file")
        candidates += [("workload", "classes", index, name, "path") for name in names]
    return [path for path in candidates if isinstance(_get(document.data, path), str)]


def _get(data: Any, path: KeyPath) -> Any:
    for part in path:
        if isinstance(data, dict):
            data = data.get(str(part))
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _anchor_paths(document: Document, set_paths: Sequence[KeyPath], directory: Path) -> None:
    """Paths written in the file start at its directory; those given by --set at the working directory."""
    for path in _file_paths(document):
        if not any(path[: len(given)] == given for given in set_paths):
            holder = _get(document.data, path[:-1])
            holder[path[-1]] = str(directory / Path(holder[path[-1]]).expanduser())


def _missing_files(document: Document) -> list[str]:
    problems = []
    for path in _file_paths(document):
        file = Path(_get(document.data, path))
        try:
            rule = "is a directory" if file.is_dir() else "" if file.exists() else "no such file"
        except (OSError, ValueError):
            rule = "cannot be a file name"
        if rule:
            problems.append(_line(document, path, f"{rule} (got {shown(str(file), 120)})"))
    return problems
