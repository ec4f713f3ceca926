"""The schema for editors, and a scenario as plain data."""

from __future__ import annotations

from typing import Any

from engine.config import engine_field_names
from workbench.scenario.schema import Scenario


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a scenario file."""
    schema = Scenario.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    fields: dict[str, Any] = {name: {} for name in engine_field_names() if name != "model"}
    schema["properties"]["engine"] |= {"properties": fields, "additionalProperties": False}
    return schema


def scenario_to_dict(scenario: Scenario) -> dict[str, Any]:
    """The scenario as JSON types, defaults written out; valid input for `Scenario.model_validate` again."""
    return scenario.model_dump(mode="json")
