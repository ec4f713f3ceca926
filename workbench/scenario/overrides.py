"""`--set a.b=c`: changes applied to the document before it is validated."""

from __future__ import annotations

from typing import Any

from engine.errors import suggest
from workbench.scenario.document import Document, Path, dotted, read_value
from workbench.scenario.errors import ScenarioError, shown


def apply_override(document: Document, text: str) -> Path:
    """Apply one `a.b=c`; returns the path that was set.

    Items of a list go by index (`workload.classes.0.weight`) or by their `name` (`workload.classes.short.weight`).
    Raises `ScenarioError` for a text without `=`, an index out of range or a path that runs through a single value.
    Unknown keys are left to validation, which knows the nearest known one.
    """
    source = f"--set {shown_text(text)}"
    key, equals, value_text = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ScenarioError(f"{source}: must look like section.key=value, for example workload.arrivals.rate=4")
    value = read_value(value_text, source)
    container: Any = document.data
    path: Path = ()
    for part in parts[:-1]:
        step = _step(container, part, path, source)
        path = (*path, step)
        if isinstance(container, dict) and container.get(part) is None:
            container[part] = {}
            document.origins[path] = source
        container = container[step]
    last = _step(container, parts[-1], path, source)
    path = (*path, last)
    container[last] = value
    for stale in [other for other in document.origins if other[: len(path)] == path]:
        del document.origins[stale]
    document.origins[path] = source
    return path


def shown_text(text: str) -> str:
    """The override as messages quote it."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _step(container: Any, part: str, path: Path, source: str) -> str | int:
    """The key or index that `part` means in `container`."""
    if isinstance(container, dict):
        return part
    if not isinstance(container, list):
        raise ScenarioError(f"{source}: {dotted(path)}: is a single value (got {shown(container)}), it has no {part!r}")
    if part.isascii() and part.isdigit():
        if int(part) >= len(container):
            raise ScenarioError(
                f"{source}: {dotted((*path, part))}: no such item. The list has {len(container)}, counted from 0"
            )
        return int(part)
    names = [str(item.get("name")) if isinstance(item, dict) else "" for item in container]
    if part in names:
        return names.index(part)
    known = [name for name in names if name] or [str(index) for index in range(len(container))]
    raise ScenarioError(f"{source}: {dotted((*path, part))}: no such item. {suggest(part, known)}")
