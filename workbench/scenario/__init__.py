"""The validated, frozen input of everything: one YAML file."""

from workbench.scenario.engine_spec import engine_spec
from workbench.scenario.errors import ScenarioError
from workbench.scenario.export import json_schema, scenario_to_dict
from workbench.scenario.loader import load_scenario, parse_scenario
from workbench.scenario.schema import RequestClass, Scenario, WorkloadSpec
from workbench.scenario.slo import Slo, SloLimit

__all__ = [
    "RequestClass",
    "Scenario",
    "ScenarioError",
    "Slo",
    "SloLimit",
    "WorkloadSpec",
    "engine_spec",
    "json_schema",
    "load_scenario",
    "parse_scenario",
    "scenario_to_dict",
]
