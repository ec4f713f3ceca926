"""Logs with a planted cause, in the formats of several vLLM versions."""

from __future__ import annotations

import pytest

from workbench.capacity.diagnosis import Finding, apply_rules
from workbench.capacity.diagnosis.vllm_log import is_vllm_log, read_vllm_log

Sample = tuple[int, int, float, float]
"""Running, waiting, KV usage in %, prefix hit rate in %."""


def v1(samples: list[Sample], *, args: str = "", concurrency: str = "36.40x", window: str = "8,192") -> str:
    head = [
        f"(APIServer pid=7) INFO 03-17 15:37:02 [utils.py:233] non-default args: {{'model': 'm'{args}}}",
        "(EngineCore pid=9) INFO 03-17 15:37:55 [gpu_worker.py:298] Available KV cache memory: 16.00 GiB",
        "(EngineCore pid=9) INFO 03-17 15:37:55 [kv_cache_utils.py:1087] GPU KV cache size: 299,584 tokens",
        "(EngineCore pid=9) INFO 03-17 15:37:55 [kv_cache_utils.py:1091] Maximum concurrency for "
        f"{window} tokens per request: {concurrency}",
        "(APIServer pid=7) INFO:     Application startup complete.",
    ]
    return "\n".join([*head, *(line(number, *sample) for number, sample in enumerate(samples))]) + "\n"


def line(
    number: int, running: int, waiting: int, usage: float, hits: float, rates: tuple[float, float] = (900, 800)
) -> str:
    return (
        f"(APIServer pid=7) INFO 03-17 15:{38 + number // 6:02d}:{number % 6}0 [loggers.py:259] Engine 000: "
        f"Avg prompt throughput: {rates[0]:.1f} tokens/s, Avg generation throughput: {rates[1]:.1f} tokens/s, "
        f"Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {usage:.1f}%, "
        f"Prefix cache hit rate: {hits:.1f}%"
    )


def growing(running: int, usage: float, hits: float = 40.0) -> list[Sample]:
    return [(running, 8 * number, usage, hits) for number in range(1, 10)]


def steady(running: int, usage: float, hits: float = 40.0) -> list[Sample]:
    return [(running + number % 3, 0, usage, hits) for number in range(9)]


def newest(samples: list[Sample], engines: int = 1, args: str = "") -> str:
    """One line for size and concurrency, more figures at the end of a line, a line per data-parallel engine."""
    head = (
        f"(APIServer pid=1) INFO 08-07 21:32:22 [api_utils.py:273] non-default args: {{'model_tag': 'm'{args}}}\n"
        "(EngineCore pid=3) INFO 08-07 21:33:07 [kv_cache_utils.py:2146] GPU KV cache size: 314,187 tokens, "
        "Maximum concurrency for 8,192 tokens per request: 38.35x\n"
    )
    end = ", External prefix cache hit rate: 0.0%, MM cache hit rate: 12.0%"
    lines = [
        line(number, *sample).replace("Engine 000", f"Engine {engine:03d}") + end
        for number, sample in enumerate(samples)
        for engine in range(engines)
    ]
    return head + "\n".join(lines) + "\n"


def v0(samples: list[Sample], cumulative: int) -> str:
    lines = ["INFO 05-22 02:20:00 gpu_executor.py:122] # GPU blocks: 2800, # CPU blocks: 512"]
    for number, (running, waiting, usage, _) in enumerate(samples):
        lines.append(
            f"INFO 05-22 02:2{number}:00 metrics.py:455] Avg prompt throughput: 90.0 tokens/s, "
            f"Avg generation throughput: 450.0 tokens/s, Running: {running} reqs, Swapped: 0 reqs, "
            f"Pending: {waiting} reqs, GPU KV cache usage: "
            f"{usage}%, CPU KV cache usage: 0.0%."
        )
        lines.append(
            f"WARNING 05-22 02:2{number}:05 scheduler.py:1057] Sequence group 9 is preempted by "
            "PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end "
            f"performance. total_num_cumulative_preemption={1 + cumulative * number // 8}"
        )
    return "\n".join(lines)


CALM, SURGE = (400.0, 900.0), (14000.0, 60.0)
STALLS = "\n".join(
    line(number, 21, 30 if number in (3, 7) else 0, 34.0, 40.0, SURGE if number in (3, 7) else CALM)
    for number in range(10)
)
PROFILE = (
    "INFO 02-11 10:00:00 worker.py:267] the current vLLM instance can use total_gpu_memory (79.10GiB) x "
    "gpu_memory_utilization (0.95) = 75.14GiB\n"
    "INFO 02-11 10:00:00 worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.14GiB; PyTorch "
    "activation peak memory takes 5.21GiB; the rest of the memory reserved for KV Cache is 54.80GiB.\n"
)
NO_START = (
    "(EngineCore pid=9) ERROR 03-17 15:37:55 [core.py:708] ValueError: To serve at least one request with the model's "
    "max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.50 "
    "GiB). Based on the available memory, the estimated maximum model length is 77824. Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n"
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total of 79.10 GiB\n"

PLANTED: dict[str, tuple[str, str]] = {
    "KV full": ("kv_cache_full", v1(growing(40, 99.3))),
    "KV full, hits nothing either": ("kv_cache_full", v1(growing(37, 99.3, 0.0))),
    "KV full, standing queue": ("kv_cache_full", v1([(30 + n % 4, 12 - n % 3, 98.0, 40.0) for n in range(8)])),
    "budget": ("token_budget_too_small", v1(growing(9, 19.3), args=", 'max_num_batched_tokens': 512")),
    "budget unknown": ("token_budget_too_small", v1(growing(9, 19.3))),
    "cap": ("sequence_cap_too_small", v1(growing(16, 12.0), args=", 'max_num_seqs': 16")),
    "cap never reached": ("cap_never_reached", v1(steady(12, 9.0), args=", 'max_num_seqs': 512")),
    "V0 preemptions": ("preemption_storm", v0([(20, 6, 98.8, 0.0)] * 9, 400)),
    "V1 preemptions": (
        "preemption_storm",
        v1(growing(40, 99.6)).replace(" reqs, GPU KV", " reqs, Preemptions: 14, GPU KV"),
    ),
    "KV full on two engines": ("kv_cache_full", newest(growing(61, 99.4), engines=2, args=", 'max_num_seqs': 512")),
    "cap, newest lines": ("sequence_cap_too_small", newest(growing(32, 22.0), args=", 'max_num_seqs': 32")),
    "no hits": ("prefix_cache_misses", v1(steady(20, 30.0, 0.4))),
    "stalls": ("head_of_line_blocking", STALLS),
    "window": ("max_model_len_too_large", v1(steady(4, 55.0), concurrency="1.21x", window="131,072")),
    "window, KV full": ("max_model_len_too_large", v1(growing(2, 99.0), concurrency="1.21x", window="131,072")),
    "window does not start": ("max_model_len_too_large", NO_START),
    "headroom": ("memory_headroom", PROFILE + v1(steady(20, 30.0), args=", 'gpu_memory_utilization': 0.95")),
    "utilisation": ("memory_headroom", v1(steady(20, 30.0), args=", 'gpu_memory_utilization': 0.98")),
    "out of memory under load": ("out_of_memory", v1(steady(20, 30.0)) + OOM),
    "out of memory at start": ("out_of_memory", OOM),
    "saturation": ("saturation", v1(growing(256, 71.0), args=", 'max_num_seqs': 256")),
    "saturation, KV full too": ("saturation", v1(growing(256, 97.0))),
}


def findings(text: str) -> list[Finding]:
    return list(apply_rules(read_vllm_log(text)))


@pytest.mark.parametrize("name", list(PLANTED))
def test_log_with_a_planted_cause_has_it_first(name: str) -> None:
    code, text = PLANTED[name]
    assert is_vllm_log(text)
    found = findings(text)
    assert [finding.code for finding in found][:1] == [code], [(f.code, f.symptom) for f in found]
    assert found[0].changes


@pytest.mark.parametrize(
    "text",
    [
        v1(steady(20, 30.0)),
        newest(steady(30, 20.0), engines=2),
        v1(steady(20, 30.0), args=", 'max_num_seqs': 128, 'gpu_memory_utilization': 0.9"),
        v1([(60, 2 if number == 4 else 0, 64.0, 71.0) for number in range(9)]),
        v1(steady(20, 30.0, 0.0), args=", 'enable_prefix_caching': False"),
        v1([]),
        v1([]) + line(0, 0, 0, 0.0, 0.0, (0.0, 0.0)),
    ],
)
def test_healthy_log_gives_nothing(text: str) -> None:
    assert [finding.code for finding in findings(text)] == []


def test_start_that_failed_names_the_longest_window() -> None:
    finding = findings(NO_START)[0]
    assert (finding.changes[0].parameter, finding.changes[0].value) == ("max_model_len", 77824)
    assert finding.evidence["max_model_len"] == 131072


def test_headroom_compares_what_is_left_with_the_profiled_peak() -> None:
    finding = findings(PLANTED["headroom"][1])[0]
    assert finding.evidence["activation_peak_bytes"] == int(5.21 * 1024**3)
    assert finding.evidence["headroom_bytes"] == pytest.approx(0.05 * 79.10 * 1024**3, rel=1e-6)


def test_command_line_options_are_read_like_arguments() -> None:
    evidence = read_vllm_log("vllm serve m --max-num-seqs 64 --max-model-len=4096 --no-enable-prefix-caching")
    assert (evidence.limits.max_num_seqs, evidence.limits.max_model_len) == (64, 4096)
    assert evidence.limits.prefix_caching is False


def test_text_of_another_program_is_no_vllm_log() -> None:
    assert not is_vllm_log("2024-01-01 nginx started\nGET / 200\n")


@pytest.mark.parametrize(
    "stated",
    ["'kv_cache_dtype': 'fp8', 'tensor_parallel_size': 2", "kv_cache_dtype=fp8_e4m3, tensor_parallel_size=2"],
    ids=["arguments", "engine configuration"],
)
def test_what_the_log_says_is_in_force_is_not_advised(stated: str) -> None:
    found = apply_rules(read_vllm_log(v1(growing(40, 99.0), args=f", {stated}")))
    assert found[0].code == "kv_cache_full"
    changes = {change.parameter: change.value for change in found[0].changes}
    assert "kv_cache_dtype" not in changes
    assert changes["tensor_parallel_size"] == 4
    plain = apply_rules(read_vllm_log(v1(growing(40, 99.0))))
    assert {change.parameter: change.value for change in plain[0].changes}["kv_cache_dtype"] == "fp8"


def test_window_is_not_advised_below_a_need_that_is_not_known() -> None:
    found = apply_rules(read_vllm_log(v1(growing(2, 98.0), concurrency="1.20x", window="131,072")))
    windows = [change.value for finding in found for change in finding.changes if change.parameter == "max_model_len"]
    assert windows == ["the longest prompt + output that is needed"]
