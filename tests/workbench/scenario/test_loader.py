"""Every bad input is one line that says where, what and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workbench.scenario import ScenarioError, load_scenario, parse_scenario

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("rate: 4", "rate: -1", "s.yaml:7: workload.arrivals.rate: must be over 0 (got -1)"),
        ("rate: 4", "rate: .inf", "s.yaml:7: workload.arrivals.rate: must be a finite number (got inf)"),
        ("rate: 4", "rate: four", "s.yaml:7: workload.arrivals.rate: must be a number (got 'four')"),
        ("rate: 4", "rate: true", "s.yaml:7: workload.arrivals.rate: must be a number (got True)"),
        ("num_requests: 10", "num_requests: 1.5", "s.yaml:6: workload.num_requests: must be a whole number (got 1.5)"),
        ("num_requests: 10", "num_requests: 0", "s.yaml:6: workload.num_requests: must be at least 1 (got 0)"),
        ("num_requests: 10", "", "s.yaml:5: workload.num_requests: is missing: give num_requests or duration"),
        (
            "kind: poisson",
            "kind: poison",
            "s.yaml:7: workload.arrivals: unknown kind 'poison'. did you mean 'poisson'?",
        ),
        (
            "name: long",
            "name: short",
            "s.yaml:13: workload.classes.1.name: is used twice (got 'short'). Names must differ",
        ),
        ("ttft_p95", "ttfs_p95", "s.yaml:17: slo.ttfs_p95: unknown key (got '500ms'). did you mean 'ttft_p95'?"),
        ("tpot: 25ms", "rate: 25ms", "s.yaml:18: slo.rate: unknown key (got '25ms'). known: attainment_target, e2el"),
        (
            "500ms",
            "500 parsecs",
            "s.yaml:17: slo.ttft_p95: must be a duration such as 500ms, 2s or 0.5 (seconds) (got '500 parsecs')",
        ),
        ("500ms", "-5ms", "s.yaml:17: slo.ttft_p95: must be over 0 (got '-5ms')"),
        (
            "max_num_seqs: 64",
            "max_num_seq: 64",
            "s.yaml:4: engine.max_num_seq: not an engine parameter. did you mean 'max_num_seqs'?",
        ),
        ("max_num_seqs: 64", "max_num_seqs: no", "s.yaml:4: engine.max_num_seqs: must be a whole number (got 'no')"),
        (
            "max_num_seqs: 64",
            "max_num_seqs: 4096",
            "s.yaml:4: engine.max_num_seqs: max_num_batched_tokens must be at least max_num_seqs (got 2048 < 4096)",
        ),
        (
            "max_num_seqs: 64",
            "max_num_batched_tokens: 100",
            "s.yaml:4: engine.max_num_batched_tokens: must be at least max_num_seqs (got 100 < 128)",
        ),
        ("max_num_seqs: 64", "device_memory: 12QB", "s.yaml:4: engine.device_memory: a size must be a number of bytes"),
        ("max_num_seqs: 64", "model: x", "s.yaml:4: engine.model: belongs at the top level of the scenario"),
        (
            "block_size: {",
            "blocksize: {",
            "s.yaml:21: search.space.blocksize: is not an engine parameter. did you mean 'block_size'?",
        ),
        (
            "low: 4, high",
            "low: 99, high",
            "s.yaml:22: search.space.max_num_seqs.high: must be at least low (99, got 64)",
        ),
        ("low: 4, high", "low: 0, high", "s.yaml:22: search.space.max_num_seqs.low: must be over 0 with log: true"),
        ("[8, 16, 32]", "[8, 0]", "s.yaml:21: search.space.block_size.choices.1: must be at least 1 (got 0)"),
        ("p90: 1200", "p90: 100", "s.yaml:14: workload.classes.1.input_tokens.percentiles.p90: must be at least p50"),
        (
            "p90: 1200",
            "q90: 100",
            "s.yaml:14: workload.classes.1.input_tokens.percentiles.q90: must be named p0 to p100",
        ),
        ("sigma: 0.6", "sigma: -1", "s.yaml:11: workload.classes.0.input_tokens.sigma: must be over 0 (got -1)"),
        ("sigma: 0.6, ", "", "s.yaml:11: workload.classes.0.input_tokens: needs sigma and one of median and mean"),
        (
            "output_tokens: 24",
            "output_tokens: 0",
            "s.yaml:15: workload.classes.1.output_tokens: must be at least 1 (got 0)",
        ),
        ("name: demo\n", "", "s.yaml:1: name: is missing"),
        ("seed: 1", "seed: -1", "s.yaml:2: seed: must be at least 0 (got -1)"),
        ("seed: 1", "target: {kind: endpoint}", "s.yaml:2: target: needs url, the address of the server, or launch"),
        ("seed: 1", "target: endpoint", "s.yaml:2: target: needs url, the address of the server, or launch"),
        ("seed: 1", "target: {url: x}", "s.yaml:2: target: kind is missing. known: embedded, endpoint, simulated"),
        (
            "seed: 1",
            "target: {kind: endpoint, url: host}",
            "s.yaml:2: target.url: must be an http:// or https:// address",
        ),
        (
            "search:\n",
            "search:\n  objective: goodput\n",
            "s.yaml:20: search.objective: is not an objective (got 'goodput'). did you mean 'goodput_rps'?",
        ),
    ],
)
def test_parse_bad_value_is_located_and_explained(refusal: Any, old: str, new: str, expected: str) -> None:
    assert refusal((old, new)).splitlines()[0].startswith(expected)


def test_parse_unknown_key_comes_before_what_it_leaves_missing(refusal: Any) -> None:
    assert refusal(("rate: 4", "rat: 4")).splitlines() == [
        "s.yaml:7: workload.arrivals.rat: unknown key. did you mean 'rate'?",
        "s.yaml:7: workload.arrivals.rate: is missing",
    ]


def test_parse_weights_that_sum_to_zero_are_refused(refusal: Any) -> None:
    message = refusal(("weight: 3", "weight: 0"), ("name: long", "name: long\n      weight: 0"))
    assert message == "s.yaml:8: workload.classes: must have weights that do not sum to 0"


def test_parse_many_problems_are_cut_to_three_lines(refusal: Any) -> None:
    message = refusal(("rate: 4", "rate: -4"), ("sigma: 0.6", "sigma: -1"), ("25ms", "x"), ("low: 8", "low: 0"))
    assert message.splitlines()[2] == "... and 2 more problems"


def test_parse_stages_named_like_their_kind_are_located(refusal: Any) -> None:
    arrivals = "{kind: stages, stages: [{rate: 1, duration: 2s}, {rate: -1, duration: 2s}]}"
    message = refusal(("{kind: poisson, rate: 4}", arrivals))
    assert message == "s.yaml:7: workload.arrivals.stages.1.rate: must be at least 0 (got -1)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "s.yaml: the file is empty"),
        ("# only a comment\n", "s.yaml: the file is empty"),
        ("- a\n- b\n", "s.yaml:1: the top level must be a mapping of keys (got a list)"),
        ("plain text", "s.yaml:1: the top level must be a mapping of keys (got a single value)"),
        ("name: [1\nb: 2", "s.yaml:2: not valid YAML"),
        ("a: *nowhere", "s.yaml:1: not valid YAML: found undefined alias"),
        ("a: 1\nb: 2\na: 3", "s.yaml:3: a: key is given twice. Keep one"),
        ("a: &x [*x]", "s.yaml:1: nested too deeply"),
        ("[" * 5000, "s.yaml: nested too deeply"),
        ("a: 1\n---\nb: 2", "s.yaml:2: not valid YAML"),
        ("a: !!python/object:os.system x", "s.yaml:1: tags such as"),
        ("? [a, b]\n: 1", "s.yaml:1: a key must be a text (got a list)"),
        ("a: \x01", "s.yaml: not valid YAML"),
        ("\t- a", "s.yaml:1: not valid YAML"),
    ],
)
def test_parse_text_that_is_no_scenario_is_refused(refusal: Any, text: str, expected: str) -> None:
    assert refusal(text=text).startswith(expected)


def test_parse_alias_bomb_is_refused_quickly(refusal: Any) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "too many values" in refusal(text="\n".join(levels))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("workload.arrivals.rate=-1", "workload.arrivals.rate: must be over 0 (got -1)"),
        ("workload.arivals.rate=3", "workload.arivals: unknown key. did you mean 'arrivals'?"),
        ("workload.classes.0.weight=x", "workload.classes.0.weight: must be a number (got 'x')"),
        ("workload.classes.7.weight=2", "workload.classes.7: no such item. The list has 2, counted from 0"),
        ("workload.classes.shrt.weight=2", "workload.classes.shrt: no such item. did you mean 'short'?"),
        ("seed.x=1", "seed: is a single value (got 1), it has no 'x'"),
        ("seed", "must look like section.key=value"),
        ("=1", "must look like section.key=value"),
        ("a..b=1", "must look like section.key=value"),
        ("seed=[1", "not valid YAML"),
        ("engine.max_num_seq=1", "engine.max_num_seq: not an engine parameter. did you mean 'max_num_seqs'?"),
        ("workload={}", "workload.arrivals: is missing"),
        ("workload.arrivals={kind: trace, path: nope.csv}", "workload.arrivals.path: no such file (got 'nope.csv')"),
        (
            "workload.arrivals={kind: trace}",
            "workload.arrivals.path: is missing. Give the trace file in the scenario or",
        ),
        ("search.objective=ttft.p95", "search.objective: is not an objective (got 'ttft.p95')"),
    ],
)
def test_override_that_is_wrong_names_its_own_text(refusal: Any, override: str, expected: str) -> None:
    message = refusal(overrides=(override,)).splitlines()[0]
    if not message.startswith("s.yaml"):  # a default objective has no place of its own
        assert message.startswith(f"--set {override}: ")
    assert expected in message


def test_override_applies_before_validation_by_index_and_by_name(good_text: str) -> None:
    scenario = parse_scenario(
        good_text,
        overrides=(
            "workload.classes.0.weight=5",
            "workload.classes.long.output_tokens={kind: uniform, low: 1, high: 2}",
            "engine.max_num_seqs=32",
            "slo.e2el=2s",
            "measurement.warm_up=1s",
            "description=",
        )[:-1],
    )
    assert scenario.workload.classes[0].weight == 5
    assert scenario.workload.classes[1].output_tokens.kind == "uniform"
    assert scenario.engine == {"max_num_seqs": 32}
    assert scenario.slo is not None
    assert scenario.slo.e2el == 2.0
    assert scenario.measurement.warm_up == 1.0


def test_override_that_repairs_the_file_is_accepted(good_text: str) -> None:
    broken = good_text.replace("rate: 4", "rate: -4")
    assert parse_scenario(broken, overrides=("workload.arrivals.rate=4",)).workload.arrivals.kind == "poisson"


def test_load_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"nope\.yaml: no such file"):
        load_scenario(tmp_path / "nope.yaml")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is a binary file"),
        (b"name: caf\xe9\n", ":1: not UTF-8 text"),
        (b"a: 1\n" * 300_000, "larger than 1 MiB"),
        (b"", "the file is empty"),
    ],
)
def test_load_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert expected in str(caught.value)


def test_load_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="is a directory"):
        load_scenario(tmp_path)


def test_load_name_with_null_byte_is_refused() -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_scenario("a\0b")


def test_load_byte_order_mark_and_windows_lines_are_accepted(tmp_path: Path, good_text: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + good_text.replace("\n", "\r\n").encode())
    assert load_scenario(path).name == "demo"


def test_load_trace_path_in_file_starts_at_the_file_and_in_set_at_the_working_directory(
    tmp_path: Path, good_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "a.csv").write_text("x")
    (tmp_path / "b.csv").write_text("x")
    path = tmp_path / "scenarios" / "s.yaml"
    path.write_text(good_text.replace("{kind: poisson, rate: 4}", "{kind: trace, path: a.csv}"))
    monkeypatch.chdir(tmp_path)
    assert load_scenario(path).workload.arrivals.path == tmp_path / "scenarios" / "a.csv"  # type: ignore[union-attr]
    given = load_scenario(path, ["workload.arrivals.path=b.csv"])
    assert given.workload.arrivals.path == Path("b.csv")  # type: ignore[union-attr]


def test_import_scenario_is_quick_and_free_of_heavy_packages() -> None:
    code = (
        "import sys, time; begin = time.perf_counter(); import workbench.scenario; "
        "took = time.perf_counter() - begin; "
        "print(took, sorted({'torch', 'pandas', 'pyarrow', 'scipy', 'optuna', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    took, heavy = done.stdout.split(" ", 1)
    assert heavy.strip() == "[]"
    assert float(took) < 2.0  # 0.2 s on an idle machine


@pytest.mark.parametrize("path", sorted((REPOSITORY / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_load_shipped_scenario_is_valid(path: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("x")
    needs_trace = "kind: trace" in path.read_text()
    scenario = load_scenario(path, [f"workload.arrivals.path={trace}"] if needs_trace else [])
    assert scenario.name == path.stem
    assert path.read_text().startswith("# ")


def test_load_azure_chat_without_path_says_how_to_give_it() -> None:
    with pytest.raises(
        ScenarioError, match=r"workload\.arrivals\.path: is missing.*--set workload\.arrivals\.path=FILE"
    ):
        load_scenario(REPOSITORY / "scenarios" / "azure-chat.yaml")
