"""Whatever a file holds: rows with an account that adds up, or a `ScenarioError` of at most three lines."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.scenario import ScenarioError
from workbench.scenario.arrivals import RequestFile, TraceArrivals
from workbench.services.analyze import analyze_file
from workbench.workload.traces import import_trace

TALK = {"id": "a", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes?"}]}
SEEDS = [
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9,3,1\n",
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,1,0",
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,47218,490,API log\n6,x,0,0,0,y",
    b"arrived_at;num_prefill_tokens;num_decode_tokens\n1,5;10;20\n2,5;30;40\n",
    b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n' * 3,
    json.dumps([TALK, TALK], indent=1).encode(),
    json.dumps({"block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}]}).encode(),
    b'{"custom_id": "a", "body": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}}\n',
    b'{"prompt": "abc", "output_tokens": 3}\n{"prompt": "abc"}\n',
]
PIECES = [
    *(b"NaN", b"-1", b"1e400", b"9" * 40, b'"', b"\n", b"\r\n", b"\r", b"null", b"{", b"}", b"[", b"]", b",", b";"),
    *(b"\xff", b"\0", b"\xef\xbb\xbf", b"true", b'"\\ud800"', b"9999-12-31 00:00:00", b"1700158623.5", b":", b"\t"),
]
edits = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 12), st.sampled_from(PIECES) | st.binary(max_size=4)), max_size=4
)
wraps = st.sampled_from(
    [
        bytes,
        gzip.compress,
        lambda data: gzip.compress(data)[:-9],
        lambda data: data.decode("latin-1").encode("utf-16"),
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"[" + data.strip().replace(b"\n", b",\n") + b"]",
        lambda data: data + data[: len(data) // 2],
    ]
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SEEDS), edits, wraps)
def test_any_file_gives_an_account_or_a_refusal(
    data: bytes, changes: list[tuple[int, int, bytes]], wrap: object
) -> None:
    for start, length, piece in changes:
        data = data[:start] + piece + data[start + length :]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "file"
        path.write_bytes(wrap(data))  # type: ignore[operator]
        message = "none"
        try:
            analysis = analyze_file(RequestFile(path=path))
            got = analysis.to_json()
            json.dumps(got, allow_nan=False)
            rows = got["rows"]
            assert rows["read"] == rows["used"] + rows["skipped"]
            if got["rows_are"] == "requests":
                dropped = [warning["count"] for warning in got["warnings"] if warning["action"] == "dropped"]
                assert rows["skipped"] == sum(dropped)
            for warning in got["warnings"]:
                assert 1 <= len(warning["lines"]) <= min(warning["count"], 5)
            if analysis.arrival_s is not None:
                table, report = import_trace(TraceArrivals(kind="trace", path=path), max_model_len=512)
                assert report.num_used == len(table)
                assert (table.arrival_s[1:] >= table.arrival_s[:-1]).all()
        except ScenarioError as error:
            message = str(error)
        assert 1 <= len(message.splitlines()) <= 3
