"""Whatever a file holds: a scenario or a `ScenarioError` of at most three lines, never anything else."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.scenario import ScenarioError, json_schema, parse_scenario
from workbench.scenario.schema import Scenario

from .conftest import GOOD

PATHS = [
    "name",
    "seed",
    "engine",
    "engine.block_size",
    "engine.device_memory",
    "target",
    "target.kind",
    "workload",
    "workload.num_requests",
    "workload.duration",
    "workload.arrivals",
    "workload.arrivals.kind",
    "workload.arrivals.rate",
    "workload.classes",
    "workload.classes.0",
    "workload.classes.0.input_tokens",
    "workload.classes.0.input_tokens.kind",
    "workload.classes.0.input_tokens.values",
    "workload.classes.1.input_tokens.percentiles",
    "workload.classes.1.shared_prefix",
    "slo",
    "slo.ttft",
    "search",
    "search.space",
    "search.space.block_size",
    "search.space.block_size.choices",
    "search.objective",
]
VALUES = st.one_of(
    st.text(max_size=12),
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(str),
    st.sampled_from(
        ["null", "true", "[]", "{}", "[1, 2]", "{a: 1}", "{kind: trace, path: .}", "constant", "2s", "[[]]"]
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES), max_size=3))
def test_overrides_of_any_value_never_break_the_loader(changes: list[tuple[str, str]]) -> None:
    try:
        parse_scenario(GOOD, overrides=[f"{path}={value}" for path, value in changes])
    except ScenarioError as error:
        num_lines = len(str(error).splitlines())
    else:
        num_lines = 1
    assert 1 <= num_lines <= 3


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_text_with_a_hole_or_an_insert_never_breaks_the_loader(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(start, min(len(GOOD), start + 30)))
    insert = data.draw(st.text(alphabet=":-{}[]&*!|>'\"#%@\n\t ab1.", max_size=6))
    with contextlib.suppress(ScenarioError):
        parse_scenario(GOOD[:start] + insert + GOOD[end:])


def test_json_schema_refuses_unknown_engine_fields_and_lists_kinds() -> None:
    schema: dict[str, Any] = json_schema()
    assert schema["properties"]["engine"]["additionalProperties"] is False
    assert "max_num_seqs" in schema["properties"]["engine"]["properties"]
    assert set(schema["required"]) == {"name", "workload"}
    assert Scenario.model_fields.keys() == schema["properties"].keys()
