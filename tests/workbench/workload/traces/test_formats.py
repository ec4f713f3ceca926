"""Formats by content: what each row becomes, and what is said of rows that become nothing."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from workbench.scenario import ScenarioError

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 7}
MOONCAKE = [
    {"timestamp": 1000 * row, "input_length": 600, "output_length": 5, "hash_ids": [0, row]} for row in range(3)
]


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def kinds(read: Any) -> list[tuple[str, str, int]]:
    return [(problem.kind, problem.action, problem.count) for problem in read.ledger.problems()]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    "text",
    [
        lines(MOONCAKE),
        json.dumps(MOONCAKE),
        json.dumps(MOONCAKE, indent=2),
        "[\n" + ",\n".join(map(json.dumps, MOONCAKE)) + "\n]\n",
        lines(MOONCAKE).replace("\n", "\r\n"),
        "\ufeff" + lines(MOONCAKE),
        ",\n".join(map(json.dumps, MOONCAKE)),
        "\n\n" + "\n\n".join(map(json.dumps, MOONCAKE)),
        "\n".join(json.dumps(row, indent=1) for row in MOONCAKE),
    ],
    ids=[
        "lines",
        "array",
        "pretty array",
        "array of lines",
        "crlf",
        "bom",
        "bare array",
        "blank lines",
        "pretty objects",
    ],
)
def test_read_json_in_any_shape(read: Any, text: str, pack: Any) -> None:
    trace = read(pack(text.encode()))
    assert trace.format == "mooncake"
    assert trace.table.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert trace.ledger.num_read == 3
    assert kinds(trace) == []


def test_read_broken_row_of_an_array_is_named_and_the_rest_is_read(read: Any) -> None:
    text = "[\n" + ",\n".join(map(json.dumps, MOONCAKE)).replace('"timestamp": 1000', '"timestamp" 1000') + "\n]"
    trace = read(text)
    assert len(trace.table) == 2
    assert trace.ledger.problems()[0].lines == (3,)
    assert kinds(trace) == [("not valid JSON", "dropped", 1)]


def test_read_array_that_is_cut_off_keeps_what_is_whole(read: Any) -> None:
    trace = read(json.dumps(MOONCAKE, indent=1)[:-30])
    assert len(trace.table) == 2
    assert kinds(trace) == [("the file ends inside a value", "dropped", 1)]


def test_read_packed_lines_that_break_off_keep_what_is_there(read: Any) -> None:
    rows = [{**MOONCAKE[0], "timestamp": int(value)} for value in np.random.default_rng(0).integers(0, 10**6, 4000)]
    packed = gzip.compress(lines(rows).encode())
    trace = read(packed[: len(packed) // 2])
    assert 0 < len(trace.table) < 4000
    assert any(kind.startswith("the file breaks off") for kind, _, _ in kinds(trace))


def test_read_utf_16_as_spreadsheets_save_it(read: Any) -> None:
    text = "arrived_at\tnum_prefill_tokens\tnum_decode_tokens\n0\t1\t2\n1\t3\t4\n"
    assert read(text.encode("utf-16")).table.input_tokens.tolist() == [1, 3]


AGENTIC = {
    "id": "s",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "n", "in": 130, "out": 5, "hash_ids": [1, 2]},
        {
            "t": 10.0,
            "type": "subagent",
            "agent_id": "a",
            "requests": [{"t": 1.0, "type": "s", "in": 70, "out": 6, "hash_ids": [1]}, {"t": 30.0, "in": 64, "out": 7}],
        },
        {"t": 20.0, "type": "n", "in": 200, "out": 8, "hash_ids": [1, 2, 3]},
    ],
}


def test_read_agentic_places_sub_agents_in_time(read: Any) -> None:
    trace = read(json.dumps(AGENTIC))
    assert trace.table.arrival_s.tolist() == [0.0, 11.0, 20.0, 40.0]
    assert trace.table.output_tokens.tolist() == [5, 6, 8, 7]
    assert trace.table.block_tokens == 64
    assert kinds(trace) == []


def test_read_agentic_sessions_do_not_share_local_ids(read: Any) -> None:
    trace = read(lines([AGENTIC, AGENTIC]))
    ids = np.split(trace.table.block_ids, trace.table.block_offsets[1:-1])
    by_session = {int(number): set() for number in trace.table.session_index}
    for number, own in zip(trace.table.session_index.tolist(), ids, strict=True):
        by_session[number] |= set(own.tolist())
    assert by_session[0].isdisjoint(by_session[1])


def test_read_agentic_odd_requests_are_counted(read: Any) -> None:
    odd = [{"t": "x", "in": 1, "out": 1}, {"t": 1, "in": -1, "out": 1}, {"t": 1, "in": 1, "out": None}, 7]
    odd += [{"t": 1, "in": 640, "out": 1, "hash_ids": [1]}]
    trace = read(json.dumps({**AGENTIC, "requests": odd}))
    assert kinds(trace) == [
        ("t is not a number of seconds", "dropped", 1),
        ("in is not a number of tokens", "dropped", 1),
        ("out is not a number of tokens", "dropped", 1),
        ("not a JSON object", "dropped", 1),
        ("number of hash_ids does not fit the input length", "kept", 1),
    ]
    assert trace.ledger.num_read == 5


def conversation(*texts: str, first: str = "human") -> dict[str, Any]:
    speakers = ["human", "gpt"] if first == "human" else ["gpt", "human"]
    return {"id": "c", "conversations": [{"from": speakers[i % 2], "value": text} for i, text in enumerate(texts)]}


def test_read_sharegpt_prompts_grow_with_the_conversation(read: Any) -> None:
    table = read(json.dumps([conversation("ab", "cde", "f", "gh")])).table
    assert table.input_tokens.tolist() == [2, 6]
    assert table.output_tokens.tolist() == [3, 2]
    assert (table.session_index.tolist(), table.turn.tolist()) == ([0, 0], [0, 1])
    spans = table.tokens
    assert [bytes(spans.ids[a:b].astype(np.uint8)) for a, b in zip(spans.starts, spans.ends, strict=True)] == [
        b"ab",
        b"abcdef",
    ]


def test_read_sharegpt_odd_conversations_are_counted(read: Any) -> None:
    rows = [conversation("a", "b", "c"), conversation("a"), conversation(), {"conversations": 5}]
    rows += [{"conversations": [{"from": "human"}]}, conversation("hi", "x", "y", first="gpt"), {"x": 1}]
    trace = read(json.dumps(rows, indent=1))
    assert len(trace.table) == 2
    assert kinds(trace) == [
        ("last message has no answer", "left out", 1),
        ("conversation without a question and its answer", "dropped", 2),
        ("conversations is not a list", "dropped", 2),
        ("a message has no speaker or no text", "dropped", 1),
    ]
    assert trace.ledger.num_read == 7


def test_read_openai_batch_chat_and_completion(read: Any) -> None:
    rows = [
        {"custom_id": "a", "body": CHAT},
        {"custom_id": "b", "body": {"prompt": "abc", "max_completion_tokens": 9}},
        {"custom_id": "c", "body": {"prompt": [1, 2, 3, 4]}},
        {"custom_id": "d", "body": None},
        {"custom_id": "e", "url": "/v1/embeddings", "body": {"input": "x"}},
        {"custom_id": "f", "body": {**CHAT, "max_tokens": "many"}},
        {"custom_id": "g", "body": {"messages": [5]}},
        {"custom_id": "h", "body": {"messages": [{"role": "user", "content": [{"type": "text", "text": "xy"}]}]}},
    ]
    trace = read(lines(rows))
    assert trace.format == "openai-batch"
    assert trace.table.input_tokens.tolist() == [len("user\nhello\n"), 3, 4, len("user\nxy\n")]
    assert trace.table.output_tokens.tolist() == [7, 9, 256, 256]
    assert not trace.table.has_times
    assert kinds(trace) == [
        ("states no output length: 256 tokens assumed", "kept", 2),
        ("body is not an object", "dropped", 1),
        ("generates no text", "dropped", 1),
        ("output length is not a number of tokens", "dropped", 1),
        ("a message has no role or no content", "dropped", 1),
    ]


def test_read_vllm_custom_with_and_without_output_length(read: Any) -> None:
    trace = read(lines([{"prompt": "abc", "output_tokens": 5}, {"prompt": "abcd"}, {"prompt": 7}]))
    assert trace.format == "vllm-custom"
    assert trace.table.input_tokens.tolist() == [3, 4]
    assert trace.table.output_tokens.tolist() == [5, 256]


def test_read_requests_with_times_text_and_counts(read: Any) -> None:
    rows = [
        {"arrived_at": 5.0, "prompt": "abc", "output_tokens": 4, "session_id": "s"},
        {"arrived_at": 6.5, "input_tokens": 10, "output_tokens": 3, "status": "failed"},
        {"arrived_at": 7.0, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "session_id": "s"},
        {"arrived_at": None, "prompt": "abc", "output_tokens": 4},
    ]
    trace = read(lines(rows))
    assert trace.format == "requests"
    assert trace.head_s == 5.0
    assert trace.table.arrival_s.tolist() == [0.0, 1.5, 2.0]
    assert trace.table.failed.tolist() == [False, True, False]
    assert trace.table.session_index.tolist() == [0, -1, 0]
    assert kinds(trace) == [("arrival is not a time in seconds", "dropped", 1)]


def test_read_mapped_json_with_nested_keys_and_dates(read: Any) -> None:
    rows = [
        {"at": f"2024-05-10T00:00:0{second}Z", "usage": {"in": 5, "out": "7"}, "state": state}
        for second, state in enumerate(("ok", "error", "stop"))
    ]
    columns = {"arrival": "at", "input_tokens": "usage.in", "output_tokens": "usage.out", "status": "state"}
    trace = read(lines(rows), format="jsonl", columns={**columns, "time_unit": "timestamp"})
    assert trace.table.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert trace.table.output_tokens.tolist() == [7, 7, 7]
    assert trace.table.failed.tolist() == [False, True, False]


def test_read_mapped_csv_without_times_with_session_and_status(read: Any) -> None:
    text = "in,out,who,state\n1,2,a,200\n3,4,b,500\n5,6,a,\n"
    columns = {"input_tokens": "in", "output_tokens": "out", "session": "who", "status": "state"}
    table = read(text, format="csv", columns=columns).table
    assert not table.has_times
    assert table.session_index.tolist() == [0, 1, 0]
    assert table.failed.tolist() == [False, True, False]


def test_read_blank_lines_keep_the_line_numbers_right(read: Any) -> None:
    header = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    trace = read("\n" + header + "0,1,1\n\n1,1,1\n   \n2,x,1\n\n\n3,1\n")
    assert trace.ledger.num_read == 4
    assert {problem.kind: problem.lines for problem in trace.ledger.problems()} == {
        "num_prefill_tokens is not a number of tokens": (7,),
        "wrong number of columns": (10,),
        "line without values": (4, 8, 9),
    }


@pytest.mark.parametrize(
    ("rows", "times"),
    [
        ("0,5;1;1\n1,5;1;1\n", [0.0, 1.0]),
        ("0.5;1;1\n 2.5 ;1;1\n", [0.0, 2.0]),
        ("2023-11-16 18:00:00,5;1;1\n2023-11-16 18:00:01;1;1\n", [0.0, 0.5]),
        ("2024-01-01T00:00:00Z;1;1\n2024-01-01 02:00:01+02:00;1;1\n", [0.0, 1.0]),
    ],
)
def test_read_semicolons_decimal_commas_and_dates(read: Any, rows: str, times: list[float]) -> None:
    trace = read("arrived_at;num_prefill_tokens;num_decode_tokens\n" + rows)
    assert trace.table.arrival_s.tolist() == times


@pytest.mark.parametrize("cell", ["9" * 30, "1e400", "NaN", "-5", "5.5", "five", "", '"', "\xff", "inf", "2147483648"])
def test_read_cell_that_is_no_length_drops_its_row_and_no_other(read: Any, cell: str) -> None:
    text = f"arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n1,{cell},1\n2,1,1\n"
    trace = read(text.encode("latin-1"))
    assert trace.table.arrival_s.tolist() == [0.0, 2.0]
    assert kinds(trace) == [("num_prefill_tokens is not a number of tokens", "dropped", 1)]


def test_read_unknown_json_lists_keys_and_formats(read: Any) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(lines([{"when": 1, "in": 2}]))
    assert "Found: when, in." in str(caught.value)
    assert "sharegpt (JSON with conversations)" in str(caught.value)


def test_read_duplicated_times_are_no_problem(read: Any) -> None:
    trace = read("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "1,1,1\n" * 5)
    assert len(trace.table) == 5
    assert kinds(trace) == []


def test_read_quoted_cells_and_texts_over_several_lines(read: Any) -> None:
    header = "arrived_at,text,num_prefill_tokens,num_decode_tokens\n"
    trace = read(header + '0,"a, b",1,1\n1,"two\nlines",2,2\n2,c,"3",3\n')
    assert trace.table.input_tokens.tolist() == [1, 2, 3]
    assert trace.ledger.notes == [
        "1 line ends lie inside quotes: line numbers after them are too low",
        "arrival times are in s, inferred from the data: 1 requests/s",
    ]
