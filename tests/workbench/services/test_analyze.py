"""`analyze` says of every sample file what its source says, and never breaks on what users have."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workbench.scenario import ScenarioError, load_scenario
from workbench.services.analyze import analyze
from workbench.services.evaluate import run_scenario
from workbench.services.fit_scenario import write_fitted_scenario

REPOSITORY = Path(__file__).resolve().parents[3]
PERCENTILES = ("p50", "p90", "p95", "p99", "max")

# requests, span s, rate, CV, input and output P50/P90/P95/P99/max (nearest rank), prefix hit % (None: not known)
PUBLISHED: dict[str, tuple[int, float, float, float, str, str, float | None]] = {
    "agentic_session_trace_0057.json": (
        *(8, 109.0, 0.0734, 0.511, "14165/15225/15225/15225/15225", "176/492/492/492/492", 86.67),
    ),
    "agentic_session_trace_0291.json": (
        *(32, 1363.0, 0.0235, 2.287, "77320/97317/100537/101059/101059", "250/2185/2693/3035/3035", 89.76),
    ),
    "agentic_session_trace_0460.json": (
        *(12, 1439.0, 0.0083, 2.916, "13179/15809/16289/16289/16289", "110/163/166/166/166", 89.37),
    ),
    "azure_2023_code_first20min.csv": (
        *(3628, 1199.101, 3.0256, 14.65, "1397/4928/6607/7436/7437", "13/55/88/249/1899", None),
    ),
    "azure_2023_conv_first15min.csv": (
        *(4424, 899.882, 4.9162, 1.075, "1047/2425/4080/4109/7930", "205/430/482/626/1000", None),
    ),
    "azure_2024_code_excerpt.csv": (5, 0.074, 67.6041, 0.886, "2376/7670/7670/7670/7670", "6/15/15/15/15", None),
    "azure_2024_conv_excerpt.csv": (5, 0.247, 20.2334, 0.719, "862/1569/1569/1569/1569", "3/104/104/104/104", None),
    "burstgpt_1_first200.csv": (
        *(200, 33779.0, 0.0059, 3.495, "408/1524/1639/1877/1960", "246/541/787/1413/1903", None),
    ),
    "mooncake_conversation_first5min.jsonl": (
        *(918, 297.0, 3.0909, 2.874, "8352/28633/45820/88258/121924", "367/597/669/1005/2000", 20.34),
    ),
    "mooncake_toolagent_first181.jsonl": (
        *(181, 33.0, 5.4848, 3.92, "6618/19976/27701/49902/87169", "34/542/596/848/929", 28.49),
    ),
}
EXPECTED_WARNINGS = {"burstgpt_1_first200.csv": [("no output tokens", 9)]}


@pytest.mark.parametrize("name", PUBLISHED)
def test_analyze_sample_has_the_published_figures(shared_data: Path, name: str) -> None:
    count, span_s, rate, cv, inputs, outputs, hit = PUBLISHED[name]
    analysis = analyze(shared_data / "traces" / name)
    got = analysis.to_json()
    assert got["rows"]["read"] == got["requests"] == count
    assert got["arrivals"]["span_s"] == pytest.approx(span_s, abs=5e-4)
    assert got["arrivals"]["rate_per_s"] == pytest.approx(rate, rel=0.01)
    assert got["arrivals"]["cv"] == pytest.approx(cv, rel=0.01)
    for side, columns, published in (
        ("input_tokens", analysis.input_tokens, inputs),
        ("output_tokens", analysis.output_tokens, outputs),
    ):
        assert got[side]["max"] == int(published.split("/")[-1])
        ranked = sorted(columns.tolist())
        for percentile, stated in zip(PERCENTILES, map(int, published.split("/")), strict=True):
            if percentile == "max":
                continue
            # Ours are linear: between the neighbours of the published nearest rank.
            rank = ranked.index(stated)
            low, high = ranked[max(rank - 1, 0)], ranked[min(ranked.index(stated) + ranked.count(stated), count - 1)]
            assert low <= got[side][percentile] <= high
    if hit is None:
        assert got["prefix"]["hit_fraction"] is None
    else:
        assert 100 * got["prefix"]["hit_fraction"] == pytest.approx(hit, abs=0.005)
    assert [(w["kind"], w["count"]) for w in got["warnings"]] == EXPECTED_WARNINGS.get(name, [])


@pytest.mark.parametrize(
    ("name", "read", "used", "requests"),
    [
        ("sharegpt_synthetic.json", 72, 70, 186),
        ("openai_batch_requests.jsonl", 80, 80, 80),
        ("vllm_custom_prompts.jsonl", 60, 60, 60),
    ],
)
def test_analyze_text_counts_and_says_what_a_token_is(
    shared_data: Path, name: str, read: int, used: int, requests: int
) -> None:
    got = analyze(shared_data / "traces" / name).to_json()
    assert got["rows"] == {"read": read, "used": used, "skipped": read - used, "reasons": got["rows"]["reasons"]}
    assert sum(got["rows"]["reasons"].values()) == read - used
    assert got["requests"] == requests
    assert got["tokenizer"] == "bytes"
    assert any("bytes" in note for note in got["notes"])
    assert got["arrivals"]["span_s"] is None


def test_analyze_sharegpt_counts_its_turns(shared_data: Path) -> None:
    notes = analyze(shared_data / "traces" / "sharegpt_synthetic.json").notes
    assert "374 messages in 72 conversations give 186 requests" in notes


def test_analyze_with_a_real_tokenizer_has_fewer_tokens_than_bytes(shared_data: Path) -> None:
    path = shared_data / "traces" / "openai_batch_requests.jsonl"
    try:
        tokens = analyze(path, tokenizer="smollm2-135m")
    except ScenarioError as error:
        pytest.skip(str(error))
    as_bytes = analyze(path)
    assert tokens.tokenizer == "smollm2-135m"
    assert 2 < as_bytes.input_tokens.sum() / tokens.input_tokens.sum() < 6
    assert tokens.output_tokens.tolist() == as_bytes.output_tokens.tolist()


def test_analyze_model_len_says_what_each_window_refuses(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{row},{1000 if row else 40000},24\n" for row in range(2000))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    got = analyze(path).to_json()["max_model_len"]
    assert got["refused_fraction"][1024] == pytest.approx(1 / 2000)
    assert got["refused_fraction"][65536] == 0
    assert got["suggested"] == 1024


def test_analyze_arrivals_peaks_gaps_and_head(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    times = [100 + 0.01 * row for row in range(100)] + [400.0]
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(f"{t:g},1,1\n" for t in times))
    arrivals = analyze(path).to_json()["arrivals"]
    assert arrivals["head_s"] == 100
    assert arrivals["longest_gap_s"] == pytest.approx(299.01)
    assert arrivals["num_long_gaps"] == 1
    assert arrivals["peak_to_mean_1s"] == pytest.approx(100 / (101 / 301))


def test_analyze_drift_between_thirds_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{row},{100 if row < 400 else 300},1\n" for row in range(600))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    analysis = analyze(path)
    assert analysis.to_json()["drift"]["largest_change"] == pytest.approx(2.0)
    assert any(note.startswith("not steady") for note in analysis.notes)


def test_analyze_scenario_describes_its_workload() -> None:
    got = analyze(REPOSITORY / "scenarios" / "chat-system-prompt.yaml").to_json()
    assert got["format"] == "scenario"
    assert got["rows"] == {"read": 300, "used": 300, "skipped": 0, "reasons": {}}
    assert got["prefix"]["hit_fraction"] > 0.8
    assert len(got["fingerprint"]) == 64


@pytest.mark.parametrize(
    "name",
    [
        "azure_2023_conv_first15min.csv",
        "azure_2024_code_excerpt.csv",
        "agentic_session_trace_0291.json",
        "mooncake_toolagent_first181.jsonl",
        "sharegpt_synthetic.json",
        "openai_batch_requests.jsonl",
        "vllm_custom_prompts.jsonl",
    ],
)
def test_written_scenario_validates_and_simulates(shared_data: Path, tmp_path: Path, name: str) -> None:
    file = shared_data / "traces" / name
    path = write_fitted_scenario(analyze(file), tmp_path / "fitted" / "s.yaml")
    result = run_scenario(load_scenario(path, ["workload.num_requests=60"]))
    overall = result.summary.overall
    assert overall.num_completed == overall.num_requests == min(60, len(result.workload)) > 0


def test_write_refuses_a_scenario_and_an_empty_file(tmp_path: Path) -> None:
    path = REPOSITORY / "scenarios" / "short-qa.yaml"
    with pytest.raises(ScenarioError, match="is a scenario already"):
        write_fitted_scenario(analyze(path), tmp_path / "s.yaml")
    empty = tmp_path / "empty.csv"
    empty.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n")
    with pytest.raises(ScenarioError, match="no request that can be used"):
        write_fitted_scenario(analyze(empty), tmp_path / "s.yaml")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_program(), *words],
        capture_output=True,
        text=True,
        timeout=60,
    )


def _program() -> str:
    return str(Path(sys.executable).parent / "workbench")


def test_analyze_command_prints_one_object_and_writes_plots_with_units(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "traces" / "azure_2023_conv_first15min.csv"
    done = command("analyze", str(path), "--json", "--out", str(tmp_path), "--write", str(tmp_path / "s.yaml"))
    assert done.returncode == 0, done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    assert {"format", "rows", "input_tokens", "output_tokens", "arrivals", "prefix", "warnings"} <= got.keys()
    assert sorted(item.name for item in tmp_path.iterdir()) == [
        *("input_output.png", "lengths.png", "rate.png", "s.yaml"),
    ]
    assert (tmp_path / "rate.png").read_bytes()[:4] == b"\x89PNG"


def test_analyze_command_refuses_what_is_no_trace_in_three_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("when,in,out\n1,2,3\n")
    done = command("analyze", str(path))
    assert done.returncode == 2
    assert "Found: when, in, out" in done.stderr
    assert "mooncake" in done.stderr
    assert len(done.stderr.splitlines()) <= 3
    assert done.stdout == ""


def test_analyze_reads_packed_files_whatever_their_name(shared_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(gzip.compress((shared_data / "traces" / "mooncake_toolagent_first181.jsonl").read_bytes()))
    got = analyze(path).to_json()
    assert (got["format"], got["rows"]["read"]) == ("mooncake", 181)


COLUMNS = ("columns.arrival=when", "columns.input_tokens=in", "columns.output_tokens=out", "columns.time_unit=ms")


def test_analyze_file_with_named_columns_and_its_written_scenario(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("when,in,out\n" + "".join(f"{500 * row},{100 + row},{row + 1}\n" for row in range(40)))
    analysis = analyze(path, overrides=COLUMNS)
    assert (analysis.format, analysis.arrivals.span_s) == ("csv", 19.5)
    scenario = load_scenario(write_fitted_scenario(analysis, tmp_path / "s.yaml"))
    assert run_scenario(scenario).summary.overall.num_completed == 40


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("columns.arival=when", "columns.arival: unknown key. did you mean 'arrival'?"),
        ("zero_output=maybe", "zero_output: must be one of"),
        ("nonsense", "must look like section.key=value"),
    ],
)
def test_analyze_file_with_a_wrong_setting_is_refused(tmp_path: Path, override: str, message: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text("when,in,out\n1,2,3\n")
    with pytest.raises(ScenarioError) as caught:
        analyze(path, overrides=[override])
    assert message in str(caught.value)
