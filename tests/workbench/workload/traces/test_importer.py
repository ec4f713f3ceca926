"""Traces by content: every row is used or accounted for."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.scenario import ScenarioError
from workbench.scenario.arrivals import TraceArrivals
from workbench.workload.prompts import HashedPrompts, Vocabulary
from workbench.workload.traces import ImportReport, TraceTable, import_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def imported(path: Path, *, limits: dict[str, Any] | None = None, **keys: Any) -> tuple[TraceTable, ImportReport]:
    trace = TraceArrivals.model_validate({"kind": "trace", "path": path, **keys})
    return import_trace(trace, **(limits or {}))


def refusal(path: Path, **keys: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        imported(path, **keys)
    assert len(str(caught.value).splitlines()) <= 3
    return str(caught.value)


def test_import_azure_keeps_seven_digit_fractions(write: Any) -> None:
    path = write(
        AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:46.6805901,1,2\n2023-11-16 18:16:46.68059,5,6\n"
    )
    table, report = imported(path)
    assert table.arrival_s.tolist() == [0.0, 1e-07, 60.0]
    assert table.input_tokens.tolist() == [374, 1, 5]
    assert table.output_tokens.tolist() == [44, 2, 6]
    assert report.describe() == [f"{path} (azure): 3 rows read, 3 used, 0 skipped"]


def test_import_azure_2024_with_zone_and_whole_seconds(write: Any) -> None:
    table, _ = imported(write(AZURE + "2024-05-10 00:00:00.009930+00:00,1,5\n2024-05-10 00:00:01+00:00,2,6\n"))
    assert table.arrival_s.tolist() == [0.0, 0.99007]


@pytest.mark.parametrize(
    ("name", "count", "span", "max_input", "max_output"),
    [
        ("azure_2023_conv_first15min.csv", 4424, 899.882, 7930, 1000),
        ("azure_2023_code_first20min.csv", 3628, 1199.101, 7437, 1899),
        ("azure_2024_conv_excerpt.csv", 5, 0.247, 1569, 104),
        ("azure_2024_code_excerpt.csv", 5, 0.074, 7670, 15),
        ("mooncake_conversation_first5min.jsonl", 918, 297.0, 121924, 2000),
        ("mooncake_toolagent_first181.jsonl", 181, 33.0, 87169, 929),
    ],
)
def test_import_sample_has_the_published_figures(
    shared_data: Path, name: str, count: int, span: float, max_input: int, max_output: int
) -> None:
    table, report = imported(shared_data / "traces" / name)
    assert (report.num_read, report.num_used, len(table)) == (count, count, count)
    assert table.arrival_s[-1] == pytest.approx(span, abs=0.001)
    assert (table.input_tokens.max(), table.output_tokens.max()) == (max_input, max_output)
    assert report.problems == ()


def test_import_burstgpt_failed_rows_are_dropped_and_counted(shared_data: Path) -> None:
    table, report = imported(shared_data / "traces" / "burstgpt_1_first200.csv")
    assert (report.num_read, report.num_used + report.num_skipped) == (200, 200)
    assert len(table) == report.num_used
    assert report.problems[0].lines == (22, 40, 42, 43, 83)
    assert report.describe()[1].endswith("(lines 22, 40, 42, 43, 83, and 4 more)")


def test_import_burstgpt_second_column_set(write: Any) -> None:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    table, report = imported(write(header + "5,1,3.5,GPT-4,472,18,490,API log\n45,2,1,GPT-4,10,20,30,API log\n"))
    assert report.format == "burstgpt"
    assert table.arrival_s.tolist() == [0.0, 40.0]


def test_import_vidur_and_generic_csv(write: Any) -> None:
    path = write("arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,10,20\n2.5,30,40\n")
    assert imported(path)[1].format == "vidur"
    path = write("when;in;out\n1500;10;20\n2500;30;40\n")
    columns = {"arrival": "when", "input_tokens": "in", "output_tokens": "out", "time_unit": "ms"}
    table, report = imported(path, format="csv", columns=columns)
    assert report.format == "csv"
    assert table.arrival_s.tolist() == [0.0, 1.0]
    assert "no column 'whenn'. Columns: when, in, out" in refusal(
        path, format="csv", columns={**columns, "arrival": "whenn"}
    )


def test_import_gzip_byte_order_mark_and_windows_lines(write: Any) -> None:
    content = (b"\xef\xbb\xbf" + AZURE.encode() + b"2023-11-16 18:15:46.1,3,4\n").replace(b"\n", b"\r\n")
    assert len(imported(write(content))[0]) == 1
    assert len(imported(write(gzip.compress(content)))[0]) == 1


def test_import_bad_rows_are_dropped_with_reason_and_line(write: Any) -> None:
    rows = ["2023-11-16 18:00:00,1,1", "yesterday,1,1", "2023-11-16 18:00:02,x,1", "2023-11-16 18:00:03,1,-5"]
    rows += ["2023-11-16 18:00:04,1", "2023-11-16 18:00:05,1,nan", "2023-11-16 18:00:06,99999999999999999999,1"]
    rows += ["2023-11-16 18:00:07,2,2"]
    table, report = imported(write(AZURE + "\n".join(rows) + "\n"))
    assert table.arrival_s.tolist() == [0.0, 7.0]
    assert (report.num_read, report.num_used, report.num_skipped) == (8, 2, 6)
    assert {problem.kind: problem.lines for problem in report.problems} == {
        "TIMESTAMP is not a time": (3,),
        "ContextTokens is not a number of tokens": (4, 8),
        "GeneratedTokens is not a number of tokens": (5, 7),
        "wrong number of columns": (6,),
    }


def test_import_mixed_time_formats_are_read_alike(write: Any) -> None:
    rows = "2023-11-16 18:00:00,1,1\n2023-11-16T18:00:01Z,1,1\n2023-11-16 19:00:02+01:00,1,1\n"
    table, report = imported(write(AZURE + rows))
    assert table.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert report.num_skipped == 0


def test_import_unsorted_rows_are_sorted_and_said_so(write: Any) -> None:
    table, report = imported(write("arrived_at,num_prefill_tokens,num_decode_tokens\n3,1,1\n1,2,2\n2,3,3\n"))
    assert table.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert table.input_tokens.tolist() == [2, 3, 1]
    assert [problem.describe() for problem in report.problems] == [
        "1 kept: arrives before the row above it: sorted (line 3)"
    ]


def test_import_scales_are_stated_and_windows_cut(write: Any) -> None:
    rows = "".join(f"{second},100,10\n" for second in range(10))
    path = write("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    table, report = imported(path, time_scale=0.5, length_scale=0.25, window_start=2, window_duration="4s")
    assert table.arrival_s.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert set(table.input_tokens.tolist()) == {25}
    assert set(table.output_tokens.tolist()) == {2}
    assert report.notes[1:] == ("input and output lengths x 0.25", "arrival times x 0.5")
    assert report.problems[0].describe() == "6 dropped: outside the window (lines 2, 3, 8, 9, 10, and 1 more)"


@pytest.mark.parametrize(("policy", "used"), [("drop", 1), ("clip", 2)])
def test_import_over_long_rows_follow_the_policy(write: Any, policy: str, used: int) -> None:
    path = write("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,10\n1,100,10\n")
    table, report = imported(path, limits={"max_model_len": 50, "over_long": policy})
    assert len(table) == used
    assert int((table.input_tokens + table.output_tokens).max()) <= 50
    assert report.problems[0].lines == (3,)
    with pytest.raises(
        ScenarioError, match=r"trace\.any:3: input \+ output over max_model_len 50.*length_scale to 0\.455"
    ):
        imported(path, limits={"max_model_len": 50, "over_long": "fail"})


def test_import_zero_output_policies(write: Any) -> None:
    path = write("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,10\n1,100,0\n")
    assert len(imported(path)[0]) == 1
    assert imported(path, zero_output="one")[0].output_tokens.tolist() == [10, 1]
    assert ":3: no output tokens" in refusal(path, zero_output="fail")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "the trace is empty"),
        ("\n\n", "the trace is empty"),
        (AZURE, "the trace is empty: no rows below its header"),
        ("a,b,c\n1,2,3\n", "is not a known trace format. Found: a, b, c.\nKnown: azure"),
        (b"\x89PNG\r\n\x00\x00", "is a binary file"),
        ("[1, 2]\n", "Found: JSON int"),
        ('[\n{"timestamp": 0}]\n', "Found: timestamp."),
        ('{"a": 1}\n', "Found: a"),
        (AZURE + "x,y,z\n", "none of the 1 rows can be used. 1 dropped: TIMESTAMP is not a time (line 2)"),
        (AZURE.encode() + b"2023-11-16 18:00:00,\xff\xfe,1\n", "trace"),
        (b"\x1f\x8b\x08\x00broken", "cannot be read"),
    ],
)
def test_import_file_that_is_no_trace_is_refused(write: Any, content: str | bytes, expected: str) -> None:
    assert expected in refusal(write(content))


def test_import_truncated_gzip_is_read_up_to_where_it_breaks_off(write: Any) -> None:
    packed = gzip.compress((AZURE + "".join(f"2023-11-16 18:00:00.{row:06},1,1\n" for row in range(9999))).encode())
    table, report = imported(write(packed[: len(packed) // 2]))
    assert 0 < len(table) < 9999
    assert report.num_read == report.num_used + report.num_skipped
    assert any(problem.kind.startswith("the file breaks off") for problem in report.problems)


def test_import_stated_format_that_does_not_match_is_refused(write: Any) -> None:
    assert "is not the format 'vidur'" in refusal(write(AZURE + "2023-11-16 18:00:00,1,1\n"), format="vidur")


def test_import_mooncake_bad_lines_are_counted(write: Any) -> None:
    good = '{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}'
    bad = ["nonsense", "[1]", good.replace("600", "-1"), good.replace("1000", '"x"'), good.replace("[1, 2]", '["a"]')]
    odd = good.replace("[1, 2]", "[1]")
    table, report = imported(write("\n".join([good, *bad, odd, ""])))
    assert (report.num_read, report.num_used) == (7, 2)
    assert [(problem.kind, problem.action) for problem in report.problems] == [
        ("not valid JSON", "dropped"),
        ("not a JSON object", "dropped"),
        ("input_length is not a number of tokens", "dropped"),
        ("timestamp is not a number of milliseconds", "dropped"),
        ("hash_ids is not a list of whole numbers", "dropped"),
        ("number of hash_ids does not fit the input length", "kept"),
    ]
    assert table.block_offsets is not None
    assert table.block_offsets.tolist() == [0, 2, 3]


def test_import_mooncake_keeps_sharing_exactly(shared_data: Path) -> None:
    table, _ = imported(shared_data / "traces" / "mooncake_toolagent_first181.jsonl", length_scale=1 / 32)
    assert table.block_tokens == 16
    assert table.block_ids is not None
    assert table.block_offsets is not None
    prompts = HashedPrompts(
        seed=0,
        vocabulary=Vocabulary(size=500),
        block_tokens=16,
        block_ids=table.block_ids,
        block_offsets=table.block_offsets,
        num_prompt_tokens=table.input_tokens,
    )
    rows = [prompts.token_ids(row) for row in range(len(table))]
    assert all(len(row) == count for row, count in zip(rows, table.input_tokens, strict=True))
    ids = [table.block_ids[table.block_offsets[row] : table.block_offsets[row + 1]] for row in range(len(table))]
    for row in range(1, len(table)):
        shared = int(np.argmin(np.append(ids[0][: len(ids[row])] == ids[row][: len(ids[0])], False)))
        assert np.array_equal(rows[0][: 16 * shared][: len(rows[row])], rows[row][: 16 * shared][: len(rows[0])])


def test_import_million_rows_is_fast(write: Any) -> None:
    path = write("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "12.5,100,10\n" * 1_000_000)
    table, report = imported(path)
    assert len(table) == report.num_used == 1_000_000
