"""YAML text to plain data that remembers where each key was written."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from workbench.scenario.errors import ScenarioError, shown

Path = tuple[str | int, ...]
"""Keys and list indices from the root."""

MAX_BYTES = 1 << 20
_MAX_DEPTH = 40
_MAX_NODES = 50_000
_TAGS = ("null", "bool", "int", "float", "str", "timestamp", "merge", "value")


@dataclass(slots=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None) with the origin of every path.

    Mutable while overrides are applied, by `workbench.scenario.overrides` only.
    """

    source: str
    """How messages name the file."""
    data: dict[str, Any]
    origins: dict[Path, str] = field(default_factory=dict)
    """Path -> `file:line` or `--set text`."""

    def origin(self, path: Path) -> str:
        """Where `path`, or else the nearest thing around it, was written."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return self.source


def dotted(path: Path) -> str:
    """`workload.classes.0.weight`."""
    return ".".join(str(part) for part in path)


def read_document(text: str, source: str) -> Document:
    """Parse one YAML document whose top level is a mapping.

    Raises `ScenarioError` for syntax errors, duplicate keys, anchors that refer to themselves or multiply, and anything
    but a mapping at the top.
    """
    root = _compose(text, source)
    if root is None:
        raise ScenarioError(f"{source}: the file is empty. A scenario needs at least name and workload")
    if not isinstance(root, MappingNode):
        raise ScenarioError(f"{source}:{_line(root)}: the top level must be a mapping of keys (got a {_kind(root)})")
    builder = _Builder(source)
    data = builder.build(root, (), 0)
    return Document(source=source, data=data, origins=builder.origins)


def read_value(text: str, source: str) -> Any:
    """Parse a YAML scalar or flow collection, as in `--set key=VALUE`; an empty text is null."""
    root = _compose(text, source)
    return None if root is None else _Builder(source).build(root, (), 0)


def _compose(text: str, source: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    try:
        return yaml.compose(io.StringIO(text))  # type: ignore[no-any-return]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark is not None and not source.startswith("--set") else source
        raise ScenarioError(f"{where}: not valid YAML: {error.problem or error.context or 'syntax error'}") from None
    except (YAMLError, ValueError) as error:
        raise ScenarioError(f"{source}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ScenarioError(f"{source}: nested too deeply (more than {_MAX_DEPTH} levels)") from None


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _kind(node: Node) -> str:
    return "list" if isinstance(node, SequenceNode) else "mapping" if isinstance(node, MappingNode) else "single value"


class _Builder:
    """Builds plain data from nodes and notes the line of each path."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.origins: dict[Path, str] = {}
        self._num_nodes = 0

    def build(self, node: Node, path: Path, depth: int) -> Any:
        self._num_nodes += 1
        where = f"{self.source}:{_line(node)}"
        if depth > _MAX_DEPTH:
            raise ScenarioError(f"{where}: nested too deeply (more than {_MAX_DEPTH} levels)")
        if self._num_nodes > _MAX_NODES:
            raise ScenarioError(f"{where}: too many values (more than {_MAX_NODES}, aliases expanded)")
        self.origins.setdefault(path, where)
        if isinstance(node, MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, SequenceNode):
            return [self.build(child, (*path, index), depth + 1) for index, child in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return _scalar(node, where)

    def _mapping(self, node: MappingNode, path: Path, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where = f"{self.source}:{_line(key_node)}"
            if not isinstance(key_node, ScalarNode):
                raise ScenarioError(f"{where}: a key must be a text (got a {_kind(key_node)})")
            key = str(key_node.value)
            if key in result:
                raise ScenarioError(f"{where}: {dotted((*path, key))}: key is given twice. Keep one")
            self.origins[*path, key] = where
            result[key] = self.build(value_node, (*path, key), depth + 1)
        return result


def _scalar(node: ScalarNode, where: str) -> Any:
    text: str = node.value
    tag = str(node.tag).rpartition(":")[2]
    if tag not in _TAGS:
        raise ScenarioError(f"{where}: tags such as {shown(node.tag)} have no meaning here. Remove it")
    try:
        match tag:
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text.replace("_", ""), 0 if text.lstrip("+-")[:2].lower() in ("0x", "0o") else 10)
            case "float":
                return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
            case _:
                return text
    except ValueError:
        raise ScenarioError(f"{where}: not a number that can be read (got {shown(text)})") from None
