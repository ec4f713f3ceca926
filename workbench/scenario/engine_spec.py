"""The door from a scenario to the engine's configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.config import EngineConfig, engine_field_names
from engine.errors import ConfigError, suggest
from workbench.scenario.schema import Scenario
from workbench.scenario.search import broken_rule


def engine_spec(scenario: Scenario, **changes: Any) -> EngineConfig:
    """The scenario's engine configuration, with `changes` (a trial's parameters) on top.

    Raises `engine.errors.ConfigError`; for a loaded scenario only the changes can cause it.
    """
    return EngineConfig.from_dict({"model": scenario.model, **scenario.engine, **changes})


def engine_problems(model: object, engine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, rule) of everything wrong with an `engine:` section; clashes between fields only if each is right."""
    is_clean = True
    for name, value in engine.items():
        rule = None
        if name == "model":
            rule = "belongs at the top level of the scenario. Write it as model: there"
        elif name not in engine_field_names():
            rule = f"not an engine parameter. {suggest(name, engine_field_names())}"
        else:
            rule = broken_rule(name, value)
        if rule is not None:
            is_clean = False
            yield name, rule
    if is_clean:
        try:
            EngineConfig.from_dict({**({"model": model} if isinstance(model, str) else {}), **engine})
        except ConfigError as error:
            blamed, _, rule = str(error).partition(": ")
            if blamed in engine:
                yield blamed, rule
            else:  # the field that was set is to blame, not the default it clashes with
                yield next((name for name in engine if name in rule), ""), f"{blamed} {rule}"
