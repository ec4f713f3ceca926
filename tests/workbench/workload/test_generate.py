"""Equal seeds give equal workloads; classes do not disturb each other; what does not fit is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.scenario import ScenarioError, load_scenario, parse_scenario
from workbench.workload import ModelLimits, generate_workload

from .conftest import LONG, SHORT

REPOSITORY = Path(__file__).resolve().parents[3]
EXTRA = "{name: extra, weight: 2, input_tokens: 5, output_tokens: 5}"


def rows_of(workload: Any, name: str) -> dict[str, tuple[int, int, bytes]]:
    rows = np.flatnonzero(workload.class_index == workload.class_names.index(name))
    return {
        workload.request_ids[row]: (
            int(workload.num_prompt_tokens[row]),
            int(workload.max_output_tokens[row]),
            workload.prompt_token_ids(row).tobytes(),
        )
        for row in rows
    }


def test_generate_is_equal_in_processes_with_other_hash_seeds() -> None:
    code = (
        "from workbench.scenario import load_scenario; from workbench.workload import *; "
        "w = [generate_workload(load_scenario(f'scenarios/{n}.yaml'), ModelLimits(max_model_len=9999, vocab_size=512)) "
        "for n in ('quickstart', 'multi-turn', 'rag-document-front', 'pitfall-varying-header', 'burst')]; "
        "print([(x.fingerprint, x.arrival_s.tolist()[:9], x.prompt_token_ids(3).tolist()) for x in w])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "4711")
    }
    assert len(outputs) == 1


def test_generate_order_of_classes_does_not_matter(make_workload: Any) -> None:
    one, other = make_workload(classes=f"[{SHORT}, {LONG}]"), make_workload(classes=f"[{LONG}, {SHORT}]")
    assert one.fingerprint == other.fingerprint
    assert one.request_ids == other.request_ids


def test_generate_new_class_changes_no_request_of_the_others(make_workload: Any) -> None:
    before, after = make_workload(), make_workload(classes=f"[{EXTRA}, {SHORT}, {LONG}]")
    for name in ("short", "long"):
        old, new = rows_of(before, name), rows_of(after, name)
        assert 0 < len(new) < len(old)
        assert new.items() <= old.items()
    assert np.array_equal(before.arrival_s, after.arrival_s)


def test_generate_longer_run_extends_the_shorter(make_workload: Any) -> None:
    short, long = make_workload(num_requests=50), make_workload(num_requests=5000)
    assert np.array_equal(short.arrival_s, long.arrival_s[:50])
    assert short.request_ids == long.request_ids[:50]


@pytest.mark.parametrize("change", [{"seed": 2}, {"num_requests": 99}, {"max_concurrency": 4}])
def test_generate_any_change_changes_the_fingerprint(make_workload: Any, change: dict[str, Any]) -> None:
    assert make_workload().fingerprint != make_workload(**change).fingerprint


def test_generate_prompts_are_distinct_stable_and_of_the_stated_length(make_workload: Any) -> None:
    workload = make_workload()
    prompts = [workload.prompt_token_ids(row) for row in range(len(workload))]
    assert all(len(prompt) == count for prompt, count in zip(prompts, workload.num_prompt_tokens, strict=True))
    assert len({prompt.tobytes() for prompt in prompts}) == 100
    assert prompts[7].dtype == np.int32
    assert np.array_equal(prompts[7], workload.prompt_token_ids(7))
    assert min(prompt.min() for prompt in prompts) >= 0
    assert max(prompt.max() for prompt in prompts) < 512


def test_generate_counts_are_exact_and_interleaved(make_workload: Any) -> None:
    classes = f"[{SHORT.replace('weight: 3', 'count: 30')}, {LONG.replace('weight: 1', 'count: 10')}]"
    workload = make_workload(classes=classes, num_requests=None)
    assert [summary.num_requests for summary in workload.summary.classes.values()] == [10, 30]
    places = np.flatnonzero(workload.class_index == 0)
    assert places.min() < 12
    assert places.max() > 28


def test_generate_weights_are_shares(make_workload: Any) -> None:
    workload = make_workload(num_requests=20_000)
    assert workload.summary.classes["short"].num_requests / 20_000 == pytest.approx(0.75, abs=0.01)


def test_generate_shared_prefix_is_shared_within_a_group_and_added_in_front(make_workload: Any) -> None:
    classes = "[{name: chat, input_tokens: 10, output_tokens: 4, shared_prefix: {tokens: 32, groups: 2}}]"
    workload = make_workload(classes=classes)
    heads = [workload.prompt_token_ids(row)[:32].tobytes() for row in range(100)]
    tails = [workload.prompt_token_ids(row)[32:].tobytes() for row in range(100)]
    assert len(set(heads)) == 2
    assert len(set(tails)) == 100
    assert (workload.num_prompt_tokens == 42).all()
    assert workload.declares_sharing
    assert not make_workload().declares_sharing


def test_generate_constant_prompt_over_the_window_names_class_and_numbers(make_workload: Any) -> None:
    with pytest.raises(ScenarioError) as caught:
        make_workload(classes="[{name: huge, input_tokens: 3000, output_tokens: 8}]")
    assert str(caught.value) == (
        "workload.classes: class 'huge': prompt longer than max_model_len (got at least 3000 prompt + 8 output tokens "
        "> 2048). Shorten it or raise engine.max_model_len"
    )


def test_generate_random_lengths_over_the_window_fail_unless_a_policy_says_otherwise(make_workload: Any) -> None:
    classes = "[{name: wide, input_tokens: {kind: uniform, low: 100, high: 4000}, output_tokens: 48}]"
    with pytest.raises(ScenarioError, match=r"class 'wide': \d+ of 100 requests are over max_model_len"):
        make_workload(classes=classes)
    clipped = make_workload(classes=classes, over_long="clip")
    dropped = make_workload(classes=classes, over_long="drop")
    assert int((clipped.num_prompt_tokens + clipped.max_output_tokens).max()) == 2048
    count = clipped.summary.classes["wide"].num_clipped
    assert 30 < count < 70
    assert dropped.summary.classes["wide"].num_dropped == count
    assert len(dropped) == 100 - count
    assert clipped.summary.over_long == "clip"


def test_generate_priority_and_pacing_reach_the_workload(make_workload: Any) -> None:
    classes = "[{name: a, input_tokens: 5, output_tokens: 5, priority: -3}]"
    workload = make_workload(classes=classes, arrivals="{kind: closed_loop, concurrency: 7, think_time: 250ms}")
    assert set(workload.priority.tolist()) == {-3}
    assert workload.closed_loop is not None
    assert (workload.closed_loop.concurrency, workload.closed_loop.think_time_s) == (7, 0.25)
    assert workload.summary.rate_per_s is None


def test_generate_no_request_in_duration_is_refused(make_workload: Any) -> None:
    with pytest.raises(ScenarioError, match="gives no requests"):
        make_workload(num_requests=None, arrivals="{kind: poisson, rate: 0.001}", duration="1ms")


def test_generate_prompt_seed_changes_contents_only(make_workload: Any) -> None:
    scenario = parse_scenario(
        "name: t\nworkload: {num_requests: 9, arrivals: {kind: poisson, rate: 4}, "
        "classes: [{name: a, input_tokens: {kind: uniform, low: 5, high: 50}, output_tokens: 4}]}"
    )
    limits = ModelLimits(max_model_len=None, vocab_size=512)
    one, other = (generate_workload(scenario, limits, prompt_seed=seed) for seed in (1, 2))
    assert np.array_equal(one.arrival_s, other.arrival_s)
    assert np.array_equal(one.num_prompt_tokens, other.num_prompt_tokens)
    assert not np.array_equal(one.prompt_token_ids(0), other.prompt_token_ids(0))
    assert one.fingerprint != other.fingerprint


def test_generate_summary_describes_what_was_realised(make_workload: Any) -> None:
    classes = "[{name: wide, input_tokens: {kind: uniform, low: 100, high: 4000}, output_tokens: 48}]"
    lines = make_workload(classes=classes, over_long="clip", arrivals="{kind: constant, rate: 2}").summary.describe()
    assert lines[0] == "100 requests over 49.5 s, asked 2/s, realised 2/s, CV of gaps 0.00, drift between thirds 0%"
    assert lines[1].startswith("wide: 100 requests, input p50 ")
    assert lines[2].startswith("wide: over_long clip: ")


def test_generate_trace_keeps_relative_arrivals_and_reports_rows(shared_data: Path) -> None:
    path = shared_data / "traces" / "azure_2023_conv_first15min.csv"
    scenario = load_scenario(REPOSITORY / "scenarios" / "azure-chat.yaml", [f"workload.arrivals.path={path}"])
    workload = generate_workload(scenario, ModelLimits(max_model_len=2048, vocab_size=512))
    assert workload.arrival_s[:3] == pytest.approx([0.0, 0.21572895, 0.22709385], abs=1e-9)  # a twentieth
    report = workload.summary.source
    assert report is not None
    assert (report.num_read, report.num_used, report.num_skipped) == (4424, 4424, 0)
    assert workload.class_names == ("trace",)
    assert int((workload.num_prompt_tokens + workload.max_output_tokens).max()) <= 2048


def test_generate_trace_times_with_classes_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n5,1,1\n7,1,1\n")
    scenario = parse_scenario(
        f"name: t\nworkload: {{arrivals: {{kind: trace, path: {path}}}, "
        "classes: [{name: a, input_tokens: 5, output_tokens: 4}]}"
    )
    workload = generate_workload(scenario, ModelLimits(max_model_len=None, vocab_size=512))
    assert workload.arrival_s.tolist() == [0.0, 2.0]
    assert workload.num_prompt_tokens.tolist() == [5, 5]
