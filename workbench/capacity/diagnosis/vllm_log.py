"""Evidence from what a vLLM server wrote to its terminal: arguments, start-up lines, statistics, warnings, errors.

Formats: V1 `loggers.py` ("Engine 000: Avg prompt throughput: ... Running: N reqs, Waiting: M reqs, GPU KV cache usage:
X%, Prefix cache hit rate: Y%", newer ones with "Preemptions: N"), V0 `metrics.py` (Swapped, Pending), and the messages
of `kv_cache_utils.py`, `gpu_worker.py` and `scheduler.py` of both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from workbench.capacity.diagnosis.evidence import (
    Column,
    Evidence,
    Limits,
    Memory,
    Preemptions,
    PrefixFacts,
    Timeline,
    Traffic,
)

_GIB = 1024**3
_STAT = re.compile(
    r"Running:\s*(?P<running>\d+)\s*reqs?.*?(?:Waiting|Pending):\s*(?P<waiting>\d+)\s*reqs?"
    r"(?:.*?Preemptions:\s*(?P<preemptions>\d+))?"
    r"(?:.*?KV cache usage:\s*(?P<usage>[\d.]+)\s*%)?",
    re.IGNORECASE,
)
_PROMPT_RATE = re.compile(r"Avg prompt throughput:\s*([\d.]+)", re.IGNORECASE)
_OUTPUT_RATE = re.compile(r"Avg generation throughput:\s*([\d.]+)", re.IGNORECASE)
_HIT_RATE = re.compile(r"Prefix cache hit rate:\s*(?:GPU:\s*)?([\d.]+)\s*%", re.IGNORECASE)
_KV_TOKENS = re.compile(r"KV cache size:\s*([\d,]+)\s*tokens", re.IGNORECASE)
_KV_BLOCKS = re.compile(r"# (?:GPU|CUDA) blocks:\s*(\d+)", re.IGNORECASE)
_CONCURRENCY = re.compile(r"Maximum concurrency for\s*([\d,]+)\s*tokens per request:\s*([\d.]+)x", re.IGNORECASE)
_CUMULATIVE = re.compile(r"total_num_cumulative_preemption=(\d+)|total_cumulative_preemption_cnt=(\d+)")
_PREEMPTED = re.compile(r"is preempted by|Preempt(?:ed|ing) request", re.IGNORECASE)
_OOM = re.compile(r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError.*|CUDA out of memory.*", re.IGNORECASE)
_NO_START = re.compile(
    r"To serve at least one request with the model.s max seq len.*|No available memory for the cache blocks.*|"
    r"The model.s max seq len \(\d+\) is larger than the maximum number of tokens.*|"
    r"Free memory on device.*is less than desired GPU memory utilization.*",
    re.IGNORECASE,
)
_LONGEST = re.compile(
    r"estimated maximum model length is\s*([\d,]+)|tokens that can be stored in KV cache \(([\d,]+)\)", re.IGNORECASE
)
_ASKED = re.compile(r"max seq len \(([\d,]+)\)", re.IGNORECASE)
_TOTAL_MEMORY = re.compile(
    r"total_gpu_memory(?:=|\s*\()\s*([\d.]+)\s*GiB|Free memory on device \S+ \([\d.]+/([\d.]+) GiB\)", re.IGNORECASE
)
_ACTIVATION = re.compile(
    r"activation peak memory takes\s*([\d.]+)\s*GiB|torch peak memory increase:\s*([\d.]+)\s*GiB", re.IGNORECASE
)
_REQUESTED = re.compile(r"Requested memory:\s*([\d.]+)\s*\(util\),\s*([\d.]+)\s*GiB", re.IGNORECASE)
_ARGUMENTS = re.compile(
    r"non-default args|args: Namespace|vllm serve |Initializing an? (?:V\d )?LLM engine", re.IGNORECASE
)
_DEFAULT_CAP = 256
"""Where the arguments are told and none of them is `max_num_seqs`: vLLM's smallest server default on GPUs."""
_OPTIONS = {
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "max_model_len": int,
    "max_seq_len": int,
    "block_size": int,
    "gpu_memory_utilization": float,
    "tensor_parallel_size": int,
}
_CACHING = re.compile(r"(no[-_])?enable[-_]prefix[-_]caching['\"]?\s*[:=]?\s*(True|False)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    running: float
    waiting: float
    usage: float
    prompt_rate: float
    output_rate: float
    hit_rate: float | None
    preemptions: int


def read_vllm_log(text: str) -> Evidence:
    """Evidence of a log; lines of other kinds are passed over."""
    lines = text.splitlines()
    stats = list(_stats(lines))
    busy = [stat for stat in stats if stat.running or stat.waiting or stat.prompt_rate or stat.output_rate]
    options = _options(lines)
    return Evidence(
        source="vllm log",
        timeline=_timeline(busy),
        limits=_limits(text, options),
        traffic=Traffic(),
        preemptions=Preemptions(count=_preemptions(lines, stats)),
        prefix=PrefixFacts(hit_rate=_hit_rate(busy)),
        memory=_memory(lines),
        notes=() if stats else ("the log has no statistics lines (Running: N reqs, Waiting: M reqs)",),
    )


def is_vllm_log(text: str) -> bool:
    """Something in it is known."""
    return any(
        pattern.search(text) for pattern in (_STAT, _KV_TOKENS, _KV_BLOCKS, _CONCURRENCY, _NO_START, _OOM)
    ) or bool(_ARGUMENTS.search(text))


def _stats(lines: Iterable[str]) -> Iterator[_Stat]:
    for line in lines:
        found = _STAT.search(line)
        if found is None:
            continue
        hits = _HIT_RATE.search(line)
        usage = found["usage"]
        yield _Stat(
            running=float(found["running"]),
            waiting=float(found["waiting"]),
            usage=math.nan if usage is None else float(usage) / 100,
            prompt_rate=_number(_PROMPT_RATE, line),
            output_rate=_number(_OUTPUT_RATE, line),
            hit_rate=None if hits is None else float(hits[1]) / 100,
            preemptions=int(found["preemptions"] or 0),
        )


def _number(pattern: re.Pattern[str], line: str) -> float:
    found = pattern.search(line)
    return 0.0 if found is None else float(found[1])


def _timeline(stats: list[_Stat]) -> Timeline:
    def column(name: str) -> Column:
        return np.array([getattr(stat, name) for stat in stats], dtype=np.float64)

    return Timeline(
        running=column("running"),
        waiting=column("waiting"),
        kv_usage=column("usage"),
        prompt_rate=column("prompt_rate"),
        output_rate=column("output_rate"),
    )


def _options(lines: Iterable[str]) -> dict[str, float]:
    """Engine options wherever a line states them: arguments, namespace or engine configuration; later lines win."""
    found: dict[str, float] = {}
    for line in lines:
        if _STAT.search(line):
            continue
        for name, kind in _OPTIONS.items():
            spelled = name.replace("_", "[-_]")
            match = re.search(rf"(?<![\w-])(?:--)?{spelled}['\"]?\s*[:=\s(]\s*['\"(]?(\d[\d.]*)", line)
            if match:
                found[name] = kind(float(match[1].rstrip(".")))
    return found


def _limits(text: str, options: dict[str, float]) -> Limits:
    def whole(name: str) -> int | None:
        return int(options[name]) if name in options else None

    concurrency = _last(_CONCURRENCY, text)
    tokens, size = _last(_KV_TOKENS, text), whole("block_size") or 16
    blocks = _last(_KV_BLOCKS, text)
    window = whole("max_model_len") or whole("max_seq_len")
    asked = _last(_ASKED, text)
    if concurrency is not None:
        window = int(concurrency[1].replace(",", ""))
    elif window is None and asked is not None:
        window = int(asked[1].replace(",", ""))
    num_blocks = int(blocks[1]) if blocks is not None else None
    if tokens is not None:
        num_blocks = int(tokens[1].replace(",", "")) // size
    return Limits(
        max_num_seqs=whole("max_num_seqs") or (_DEFAULT_CAP if _ARGUMENTS.search(text) else None),
        is_cap_stated="max_num_seqs" in options,
        max_num_batched_tokens=whole("max_num_batched_tokens"),
        max_model_len=window,
        block_size=size,
        num_blocks=num_blocks,
        gpu_memory_utilization=options.get("gpu_memory_utilization"),
        kv_cache_dtype=_word("kv_cache_dtype", text),
        quantization=_word("quantization", text),
        tensor_parallel_size=whole("tensor_parallel_size"),
        prefix_caching=_caching(text),
        full_len_concurrency=None if concurrency is None else float(concurrency[2]),
    )


def _word(name: str, text: str) -> str | None:
    """The last value of an option that is a word; fp8_e4m3 is fp8, and auto or None say nothing."""
    spelled = name.replace("_", "[-_]")
    found = re.findall(rf"(?<![\w-])(?:--)?{spelled}['\"]?\s*[:=\s]\s*['\"]?(?:torch\.)?([A-Za-z]\w*)", text)
    word = found[-1].lower() if found else "none"
    return None if word in ("auto", "none") else "fp8" if word.startswith(("fp8", "float8")) else word


def _caching(text: str) -> bool | None:
    """The last that is said of it; a flag without a value is true."""
    last = None
    for found in _CACHING.finditer(text):
        is_on = (found[2] or "True").lower() == "true"
        last = is_on != bool(found[1])
    return last


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for match in pattern.finditer(text):
        found = match
    return found


def _preemptions(lines: Iterable[str], stats: Iterable[_Stat]) -> int:
    """The greatest of the three ways in which versions tell them."""
    cumulative = warned = 0
    for line in lines:
        found = _CUMULATIVE.search(line)
        if found:
            cumulative = max(cumulative, int(found[1] or found[2]))
        if _PREEMPTED.search(line):
            warned += 1
    return max(cumulative, warned, sum(stat.preemptions for stat in stats))


def _hit_rate(stats: list[_Stat]) -> float | None:
    """Of the last sample with prompts: vLLM's figure is over its most recent requests."""
    known = [stat.hit_rate for stat in stats if stat.hit_rate is not None]
    return known[-1] if known and any(stat.prompt_rate for stat in stats) else None


def _memory(lines: list[str]) -> Memory:
    served = out = start = total = peak = longest = None
    ran_before = False
    for line in lines:
        if _STAT.search(line) or "Application startup complete" in line:
            served = True
        error, failed = _OOM.search(line), _NO_START.search(line)
        if failed and not served:
            start = start or failed[0].strip()
        if error and out is None:
            out, ran_before = error[0].strip(), bool(served)
        requested = _REQUESTED.search(line)
        if requested is not None and float(requested[1]) > 0:
            total = int(float(requested[2]) / float(requested[1]) * _GIB)
        for pattern in (_TOTAL_MEMORY, _ACTIVATION, _LONGEST):
            found = pattern.search(line)
            if found is None:
                continue
            value = float((found[1] or found[2]).replace(",", ""))
            if pattern is _TOTAL_MEMORY:
                total = int(value * _GIB)
            elif pattern is _ACTIVATION:
                peak = int(value * _GIB)
            else:
                longest = int(value)
    return Memory(
        device_bytes=total,
        activation_bytes=peak,
        out_of_memory=out,
        ran_before=ran_before,
        start_error=start,
        longest_len=longest if start is not None else None,
    )
