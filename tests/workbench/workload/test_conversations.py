"""Multi-turn conversations, headers in front of prefixes, and classes from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.loadgen.pacing import pacing_of
from workbench.scenario import ScenarioError, parse_scenario
from workbench.workload import ModelLimits, Workload, generate_workload
from workbench.workload.sharing import sharing_of_prompts

TALK = (
    "[{name: chat, shared_prefix: {tokens: 32}, conversation: {turns: 3, think_time: 5s}, "
    "input_tokens: {kind: uniform, low: 10, high: 20}, output_tokens: {kind: uniform, low: 5, high: 9}}]"
)


def rows_of(workload: Workload, session: int) -> list[int]:
    rows = np.flatnonzero(workload.session_index == session)
    return rows[np.argsort(workload.turn[rows])].tolist()


def test_conversation_prompts_hold_the_whole_history(make_workload: Any) -> None:
    workload = make_workload(classes=TALK, num_requests=20)
    assert len(workload) == 60
    assert workload.summary.num_conversations == 20
    for session in range(20):
        rows = rows_of(workload, session)
        prompts = [workload.prompt_token_ids(row) for row in rows]
        for turn in (1, 2):
            before, now = prompts[turn - 1], prompts[turn]
            assert np.array_equal(now[: len(before)], before)
            grown = len(now) - len(before) - int(workload.max_output_tokens[rows[turn - 1]])
            assert 10 <= grown <= 20
    assert workload.declares_sharing
    assert len(set(workload.request_ids)) == 60


def test_conversation_times_are_the_earliest_and_ascending(make_workload: Any) -> None:
    workload = make_workload(classes=TALK, num_requests=20)
    first, second, third = (workload.arrival_s[row] for row in rows_of(workload, 0))
    assert (second - first, third - second) == pytest.approx((5.0, 5.0))
    assert (np.diff(workload.arrival_s) >= 0).all()


def test_conversation_turn_is_due_when_the_answer_is_there_and_the_user_has_thought(make_workload: Any) -> None:
    workload = make_workload(classes=TALK, num_requests=2, arrivals="{kind: constant, rate: 1}")
    pacing = pacing_of(workload)
    order = [pacing.take(), pacing.take()]
    assert [due for _, due in order] == [0.0, 1.0]
    assert pacing.next_due_s() is None
    assert pacing.num_left == 4
    pacing.ended(7.5, order[1][0])
    assert pacing.next_due_s() == 12.5
    row, due = pacing.take()
    assert (int(workload.turn[row]), due) == (1, 12.5)
    pacing.ended(3.0, order[0][0])
    assert pacing.next_due_s() == 8.0


def test_conversation_number_of_turns_may_vary(make_workload: Any) -> None:
    workload = make_workload(classes=TALK.replace("turns: 3", "turns: {kind: uniform, low: 1, high: 4}"))
    turns = np.bincount(workload.session_index)
    assert set(turns.tolist()) == {1, 2, 3, 4}


def test_conversation_over_the_window_drops_its_later_turns(make_workload: Any) -> None:
    workload = make_workload(classes=TALK, num_requests=20, max_model_len=80, over_long="drop")
    assert workload.summary.classes["chat"].num_dropped == 60 - len(workload) > 0
    pacing = pacing_of(workload)
    while (due := pacing.next_due_s()) is not None:
        row, _ = pacing.take()
        pacing.ended(due + 1.0, row)
    assert pacing.num_left == 0


def test_conversation_of_a_class_changes_no_other_class(make_workload: Any) -> None:
    plain = "{name: plain, input_tokens: {kind: uniform, low: 5, high: 50}, output_tokens: 4}"
    alone = make_workload(classes=f"[{plain}, {TALK[1:-1].replace('turns: 3', 'turns: 1')}]")
    both = make_workload(classes=f"[{TALK[1:-1]}, {plain}]")
    for workload in (alone, both):
        assert workload.class_names == ("chat", "plain")
    prompts = [
        {
            workload.request_ids[row]: workload.prompt_token_ids(row).tobytes()
            for row in np.flatnonzero(workload.class_index == 1)
        }
        for workload in (alone, both)
    ]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(("position", "is_shared"), [("front", True), ("behind_header", False)])
def test_prefix_behind_a_varying_header_shares_nothing(make_workload: Any, position: str, is_shared: bool) -> None:
    classes = (
        f"[{{name: a, shared_prefix: {{tokens: 64, position: {position}, header_tokens: 3}}, "
        "input_tokens: 20, output_tokens: 5}]"
    )
    workload = make_workload(classes=classes)
    prompts = [workload.prompt_token_ids(row) for row in range(len(workload))]
    assert {len(prompt) for prompt in prompts} == {84 if is_shared else 87}
    hit = sharing_of_prompts(prompts).hit_fraction
    assert hit == pytest.approx(0.99 * 4 / 5) if is_shared else hit == 0
    assert workload.declares_sharing is is_shared
    if not is_shared:  # the fixed part is there, only not in front
        assert len({prompt[3:67].tobytes() for prompt in prompts}) == 1


def from_file(path: Path, *, arrivals: str = "{kind: poisson, rate: 4}", num: int = 50, **keys: Any) -> Workload:
    extra = "".join(f", {key}: {value}" for key, value in keys.items())
    scenario = parse_scenario(
        f"name: t\nworkload: {{num_requests: {num}, arrivals: {arrivals}, classes: [{{name: f, file: {{path: {path}"
        f"{extra}}}}}]}}"
    )
    return generate_workload(scenario, ModelLimits(max_model_len=4096, vocab_size=512))


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.csv"
    rows = "".join(f"{row},{10 * row + 10},{row + 1}\n" for row in range(20))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    return path


def test_file_keeps_input_and_output_together(pairs: Path) -> None:
    for order in ("file", "random"):
        workload = from_file(pairs, order=order)
        assert np.array_equal(workload.num_prompt_tokens, 10 * workload.max_output_tokens)
        assert workload.summary.files["f"].num_used == 20
    assert from_file(pairs).max_output_tokens[:21].tolist() == [*range(1, 21), 1]


def test_file_length_scale_and_own_policy(pairs: Path) -> None:
    assert from_file(pairs, length_scale=0.5).num_prompt_tokens[:3].tolist() == [5, 10, 15]


def test_file_of_text_gives_the_text(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"prompt {n}", "output_tokens": n + 1}) + "\n" for n in range(5)))
    workload = from_file(path)
    assert bytes(workload.prompt_token_ids(1).astype(np.uint8)) == b"prompt 1"
    assert any("bytes" in line for line in workload.summary.describe())
    assert workload.declares_sharing


def test_file_of_text_in_a_small_vocabulary_wraps_around(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt_token_ids": [5, 100000, 511, 512], "output_tokens": 2}\n')
    assert from_file(path).prompt_token_ids(0).tolist() == [5, 100000 % 512, 511, 0]


def test_file_of_conversations_waits_for_answers(shared_data: Path) -> None:
    path = shared_data / "traces" / "sharegpt_synthetic.json"
    scenario = parse_scenario(
        f"name: t\nworkload: {{num_requests: 30, arrivals: {{kind: poisson, rate: 1}}, over_long: drop, classes: "
        f"[{{name: f, conversation: {{think_time: 3s}}, file: {{path: {path}}}}}]}}"
    )
    workload = generate_workload(scenario, ModelLimits(max_model_len=16384, vocab_size=512))
    assert workload.turn_pacing is not None
    assert workload.summary.num_conversations == 30
    rows = next(rows for rows in (rows_of(workload, number) for number in range(30)) if len(rows) > 2)
    prompts = [workload.prompt_token_ids(row) for row in rows]
    assert np.array_equal(prompts[2][: len(prompts[1])], prompts[1])


def test_file_excludes_lengths() -> None:
    with pytest.raises(ScenarioError, match=r"workload\.classes\.0\.file: excludes input_tokens"):
        parse_scenario(
            "name: t\nworkload: {num_requests: 1, arrivals: {kind: poisson, rate: 1}, classes: [{name: a, "
            "input_tokens: 5, output_tokens: 5, file: {path: x}}]}"
        )


def test_file_path_starts_at_the_scenario(pairs: Path) -> None:
    text = (
        "name: t\nworkload: {num_requests: 1, arrivals: {kind: poisson, rate: 1}, "
        "classes: [{name: a, file: {path: P}}]}"
    )
    scenario = parse_scenario(text.replace("P}", "pairs.csv}"), directory=pairs.parent)
    assert generate_workload(scenario, ModelLimits(max_model_len=None, vocab_size=9)).num_prompt_tokens.tolist() == [10]
    with pytest.raises(ScenarioError, match=r"workload\.classes\.0\.file\.path: no such file"):
        parse_scenario(text, directory=pairs.parent)


def test_trace_and_text_keep_hash_sharing_exactly(shared_data: Path) -> None:
    path = shared_data / "traces" / "mooncake_toolagent_first181.jsonl"
    scenario = parse_scenario(f"name: t\nworkload: {{arrivals: {{kind: trace, path: {path}, length_scale: 0.03125}}}}")
    workload = generate_workload(scenario, ModelLimits(max_model_len=None, vocab_size=512))
    hit = sharing_of_prompts(workload.prompt_token_ids(row) for row in range(len(workload))).hit_fraction
    # 991 blocks of the file were seen before; a partial last block is none for the engine.
    assert hit == 991 / (workload.num_prompt_tokens // 16).sum()
