"""pydantic's findings in our words: `origin: key.path: rule (got value). remedy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from engine.errors import suggest
from workbench.scenario.document import Document, Path, dotted
from workbench.scenario.errors import shown

_RULES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a text",
    "path_type": "must be the path of a file",
    "dict_type": "must be a mapping of keys",
    "model_type": "must be a mapping of keys",
    "model_attributes_type": "must be a mapping of keys",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must be a name without slash or colon",
    "too_short": "must not be empty",
}
_BOUNDS = {"greater_than": "over {gt:g}", "greater_than_equal": "at least {ge:g}", "less_than_equal": "at most {le:g}"}


def describe(error: ValidationError, document: Document, root: type[BaseModel]) -> list[str]:
    """One line per problem, in the order of the file's keys, unknown keys first where they explain missing ones."""
    found: dict[Path, str] = {}
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    for detail in details:
        path, rule = _located(detail, document.data, root)
        found.setdefault(path, f"{document.origin(path)}: {dotted(path) or 'scenario'}: {rule}")
    return list(found.values())


def _located(detail: ErrorDetails, data: Mapping[str, Any], root: type[BaseModel]) -> tuple[Path, str]:
    """Path in the user's own document (pydantic adds the tags of unions) and the message."""
    context = detail.get("ctx", {})
    parts: list[str | int] = list(detail["loc"])
    if detail["type"] == "rule":
        key = str(context["key"])
        parts += [int(part) if part.isdigit() else part for part in key.split(".")] if key else []
    path: Path = ()
    value: Any = data
    after_tag = False
    for part in parts:
        is_tag = not after_tag and part == _tag(value)
        is_inside_shorthand = isinstance(value, (int, float, str)) and detail["type"] != "missing"
        if is_tag or is_inside_shorthand:
            after_tag = is_tag
            continue
        after_tag = False
        path = (*path, part)
        value = _child(value, part)
    return path, _rule(detail, path, value, data, root)


def _tag(value: Any) -> str | None:
    """The union tag pydantic puts after the path of this value."""
    if isinstance(value, dict):
        kind = value.get("kind")
        return str(kind) if kind is not None else "percentiles" if "percentiles" in value else None
    if isinstance(value, (int, float)):
        return "constant"  # a bare number is a constant length
    return value if isinstance(value, str) else None  # a bare text is a kind


def _child(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def _rule(detail: ErrorDetails, path: Path, value: Any, data: Mapping[str, Any], root: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    got = f" (got {shown(value)})"
    if kind == "rule":
        rule = str(context["rule"])
        return rule if value is None or isinstance(value, (dict, list)) or "got" in rule else _with_got(rule, got)
    if kind == "missing":
        if path[-1] == "path" and path[:-1] == ("workload", "arrivals"):
            return "is missing. Give the trace file in the scenario or with --set workload.arrivals.path=FILE"
        return "is missing"
    if kind == "extra_forbidden":
        return f"unknown key. {suggest(str(path[-1]), _known_keys(path[:-1], data, root))}"
    if kind == "union_tag_not_found":
        return f"kind is missing. {_choices(str(context.get('discriminator')), path, data, root)}"
    if kind == "union_tag_invalid":
        return f"unknown kind {context['tag']!r}. {suggest(str(context['tag']), _split(context['expected_tags']))}"
    if kind == "literal_error":
        return f"must be one of {context['expected']}{got}".replace("'", "").replace(" or ", ", ")
    if kind in _BOUNDS:
        return f"must be {_BOUNDS[kind].format(**context)}{got}"
    if kind in _RULES:
        return _RULES[kind] + got
    return detail["msg"][:1].lower() + detail["msg"][1:] + got


def _with_got(rule: str, got: str) -> str:
    """The value goes before the remedy."""
    first, stop, remedy = rule.partition(". ")
    return first + got + stop + remedy


def _split(expected_tags: Any) -> list[str]:
    return [tag.strip(" '") for tag in str(expected_tags).split(",")]


def _choices(_: str, path: Path, data: Mapping[str, Any], root: type[BaseModel]) -> str:
    kinds = [str(get_args(model.model_fields["kind"].annotation)[0]) for model in _models_at(path, data, root)]
    return f"known: {', '.join(sorted(kinds))}" if kinds else ""


def _known_keys(path: Path, data: Mapping[str, Any], root: type[BaseModel]) -> list[str]:
    models = _models_at(path, data, root)
    return [name for model in models for name in model.model_fields]


def _models_at(path: Path, data: Mapping[str, Any], root: type[BaseModel]) -> Sequence[type[BaseModel]]:
    """The model, or the alternatives, that describe the value at `path`."""
    models: Sequence[type[BaseModel]] = [root]
    value: Any = data
    for part in path:
        value = _child(value, part)
        if isinstance(part, str) and len(models) == 1 and part in models[0].model_fields:
            field = models[0].model_fields[part]
            models = _models_in(field.annotation) or [m for piece in field.metadata for m in _models_in(piece)]
        if len(models) > 1 and isinstance(value, dict):
            models = [
                model for model in models if _tag(value) in get_args(model.model_fields["kind"].annotation)
            ] or models
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for argument in get_args(annotation):
        found += [model for model in _models_in(argument) if model not in found]
    return found
