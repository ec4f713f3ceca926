"""Dumps of /metrics with a planted cause, old and new names, one and several."""

from __future__ import annotations

import pytest

from workbench.capacity.diagnosis import apply_rules
from workbench.capacity.diagnosis.metrics_dump import is_metrics_dump, read_metrics_dumps

LABELS = 'engine="0",model_name="m"'
BOUNDS_S = (0.05, 0.1, 0.5, 1.0, 5.0, 20.0)
BOUNDS_TOKENS = (100, 500, 1000, 5000, 20000)


def histogram(name: str, bounds: tuple[float, ...], counts: tuple[int, ...]) -> list[str]:
    """`counts` per bucket, the last one above all bounds."""
    lines, total = [f"# TYPE vllm:{name} histogram"], 0
    for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
        total += count
        lines.append(f'vllm:{name}_bucket{{{LABELS},le="{bound}"}} {total}')
    return [*lines, f"vllm:{name}_count{{{LABELS}}} {total}", f"vllm:{name}_sum{{{LABELS}}} 1.0"]


def dump(
    running: int,
    waiting: int,
    usage: float,
    *,
    preemptions: int = 0,
    queries: int = 100_000,
    hits: int = 60_000,
    finished: int = 1000,
    is_old: bool = False,
    more: tuple[str, ...] = (),
    utilization: float = 0.9,
) -> str:
    name = "gpu_cache_usage_perc" if is_old else "kv_cache_usage_perc"
    prefix = "gpu_prefix_cache" if is_old else "prefix_cache"
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{LABELS}}} {running}.0",
        "# TYPE vllm:num_requests_waiting gauge",
        f"vllm:num_requests_waiting{{{LABELS}}} {waiting}.0",
        f"# TYPE vllm:{name} gauge",
        f"vllm:{name}{{{LABELS}}} {usage}",
        "# TYPE vllm:num_preemptions_total counter",
        f"vllm:num_preemptions_total{{{LABELS}}} {preemptions}.0",
        f"# TYPE vllm:{prefix}_queries_total counter",
        f"vllm:{prefix}_queries_total{{{LABELS}}} {queries}.0",
        f"# TYPE vllm:{prefix}_hits_total counter",
        f"vllm:{prefix}_hits_total{{{LABELS}}} {hits}.0",
        "# TYPE vllm:request_success_total counter",
        f'vllm:request_success_total{{{LABELS},finished_reason="stop"}} {finished}.0',
        "# TYPE vllm:cache_config_info gauge",
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="18724",enable_prefix_caching="True",'
        f'gpu_memory_utilization="{utilization}"}} 1.0',
        *more,
    ]
    return "\n".join(lines) + "\n"


SKEWED = (
    *histogram("request_prompt_tokens", BOUNDS_TOKENS, (700, 250, 0, 0, 50, 0)),
    *histogram("time_to_first_token_seconds", BOUNDS_S, (600, 200, 100, 20, 80, 0, 0)),
)
EVEN = (
    *histogram("request_prompt_tokens", BOUNDS_TOKENS, (500, 400, 100, 0, 0, 0)),
    *histogram("time_to_first_token_seconds", BOUNDS_S, (900, 80, 20, 0, 0, 0, 0)),
)

PLANTED: dict[str, tuple[str, list[str]]] = {
    "KV full, one dump": ("kv_cache_full", [dump(40, 55, 0.99)]),
    "KV full, old names": ("kv_cache_full", [dump(40, 55, 0.99, is_old=True)]),
    "KV full, growing": ("kv_cache_full", [dump(40, 10 * number, 0.99) for number in range(5)]),
    "KV full, one file": ("kv_cache_full", ["".join(dump(40, 10 * number, 0.99) for number in range(5))]),
    "budget": ("token_budget_too_small", [dump(7, 40 + number, 0.12) for number in range(4)]),
    "cap": ("sequence_cap_too_small", [dump(32, 20 * number, 0.15) for number in range(5)]),
    "saturation": ("saturation", [dump(256, 100 * number, 0.6) for number in range(5)]),
    "saturation, one dump": ("saturation", [dump(256, 300, 0.6)]),
    "storm": ("preemption_storm", [dump(60, 12, 0.99, preemptions=1843, finished=2100)]),
    "storm between dumps": (
        "preemption_storm",
        [dump(60, 5, 0.99, preemptions=400 * number, finished=500 * number) for number in range(1, 4)],
    ),
    "no hits": ("prefix_cache_misses", [dump(20, 0, 0.3, hits=900)]),
    "no hits, old names": ("prefix_cache_misses", [dump(20, 0, 0.3, hits=900, is_old=True)]),
    "skew": ("head_of_line_blocking", [dump(20, 2, 0.3, more=SKEWED)]),
    "utilisation": ("memory_headroom", [dump(20, 0, 0.3, utilization=0.98)]),
}


@pytest.mark.parametrize("name", list(PLANTED))
def test_dump_with_a_planted_cause_has_it_first(name: str) -> None:
    code, texts = PLANTED[name]
    assert all(is_metrics_dump(text) for text in texts)
    found = apply_rules(read_metrics_dumps(texts))
    assert [finding.code for finding in found][:1] == [code], [(f.code, f.symptom) for f in found]


@pytest.mark.parametrize(
    "texts",
    [
        [dump(20, 0, 0.3)],
        [dump(20, 0, 0.3, more=EVEN)],
        [dump(20 + number, 0, 0.3, finished=1000 + number) for number in range(4)],
        [dump(40, 1, 0.8, preemptions=3)],
        [dump(0, 0, 0.0, queries=0, hits=0, finished=0)],
    ],
)
def test_healthy_dump_gives_nothing(texts: list[str]) -> None:
    assert [finding.code for finding in apply_rules(read_metrics_dumps(texts))] == []


def test_scrapes_in_one_file_are_told_apart() -> None:
    evidence = read_metrics_dumps(["".join(dump(10 + number, number, 0.1) for number in range(3))])
    assert evidence.timeline.running.tolist() == [10.0, 11.0, 12.0]
    assert evidence.timeline.waiting.tolist() == [0.0, 1.0, 2.0]


def test_engines_of_one_server_add_up() -> None:
    text = dump(10, 2, 0.5) + dump(20, 3, 0.7).replace('engine="0"', 'engine="1"').replace("# ", "# ")
    joined = "\n".join(dict.fromkeys(text.splitlines())) + "\n"
    evidence = read_metrics_dumps([joined])
    assert evidence.timeline.running.tolist() == [30.0]
    assert evidence.timeline.kv_usage.tolist() == [0.7]


def test_value_that_is_no_number_is_passed_over() -> None:
    evidence = read_metrics_dumps(["vllm:num_requests_running NaN\nvllm:num_requests_waiting 3\n"])
    assert (evidence.timeline.running.tolist(), evidence.timeline.waiting.tolist()) == ([0.0], [3.0])


def test_names_of_this_projects_server_are_known() -> None:
    evidence = read_metrics_dumps([dump(10, 2, 0.5).replace("vllm:", "workbench:")])
    assert evidence.timeline.running.tolist() == [10.0]
