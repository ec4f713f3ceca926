"""The examples of docs/workloads.md work as they are printed."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from workbench.scenario import parse_scenario
from workbench.workload import ModelLimits, generate_workload

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "workloads.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n")[0][:30])
def test_example_of_the_document_generates_a_workload(tmp_path: Path, example: str) -> None:
    rows = "".join(f"{row},{100 + row},10\n" for row in range(9))
    (tmp_path / "trace.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    talk = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "That."}] * 2
    (tmp_path / "chats.json").write_text(json.dumps([{"id": "a", "conversations": talk}]))
    scenario = parse_scenario("name: doc\nworkload:\n" + textwrap.indent(example, "  "), directory=tmp_path)
    workload = generate_workload(scenario, ModelLimits(max_model_len=32768, vocab_size=512))
    assert len(workload) > 0
    assert all(len(workload.prompt_token_ids(row)) == workload.num_prompt_tokens[row] for row in range(len(workload)))
    assert workload.summary.describe()


def test_document_has_examples_and_names_every_kind_of_arrivals() -> None:
    assert len(EXAMPLES) >= 5
    text = DOCUMENT.read_text(encoding="utf-8")
    for kind in ("all_at_once", "gamma", "on_off", "diurnal", "ramp", "stages", "closed_loop", "trace"):
        assert f"`{kind}`" in text
