"""How a figure is named, in which unit it is shown, and with how many digits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

DASH = "–"
"""Shown where a value is absent."""

_NAMES = {
    "num_requests": ("Requests", ""),
    "num_completed": ("Completed", ""),
    "num_failed": ("Failed or unfinished", ""),
    "duration_s": ("Measured span", "s"),
    "requests_per_s": ("Request throughput", "req/s"),
    "output_tokens_per_s": ("Output throughput", "tokens/s"),
    "total_tokens_per_s": ("Total throughput", "tokens/s"),
    "slo_attainment": ("SLO attainment", "%"),
    "goodput_rps": ("Goodput", "req/s"),
    "pareto": ("Output throughput", "tokens/s"),
    "sustainable_rate_per_s": ("Sustainable rate", "req/s"),
    "sustainable_rate_per_gpu": ("Sustainable rate per GPU", "req/s"),
    "usd_per_million_tokens": ("Cost per million tokens", "USD"),
    "num_preemptions": ("Preemptions", ""),
    "kv_usage_mean": ("KV cache usage, mean", "%"),
    "kv_usage_max": ("KV cache usage, max", "%"),
    "prefix_hit_rate": ("Prefix cache hits", "%"),
    "ttft_s": ("TTFT", "s"),
    "tpot_s": ("TPOT", "s"),
    "itl_s": ("ITL", "s"),
    "e2el_s": ("E2EL", "s"),
    "queue_s": ("Queue time", "s"),
}
RATES = (
    "sustainable_rate_per_s",
    "sustainable_rate_per_gpu",
    "goodput_rps",
    "slo_attainment",
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
)
"""Figures of which more is better."""

PARAMETER_UNITS = {
    "block_size": "tokens",
    "max_num_seqs": "sequences",
    "max_num_batched_tokens": "tokens/step",
    "gpu_memory_utilization": "share of device memory",
    "max_model_len": "tokens",
    "long_prefill_token_threshold": "tokens",
    "scheduler_delay_factor": "",
    "watermark": "share of blocks",
}

CAUSES = {
    "no_waiting": "nothing was waiting",
    "sequence_cap": "max_num_seqs",
    "token_budget": "max_num_batched_tokens",
    "kv_blocks": "KV blocks",
    "watermark": "watermark",
    "preempted_this_step": "preempted in this step",
    "policy": "admission policy",
}
"""Why a step admitted nobody else, in words."""


def label(name: str) -> str:
    """`ttft_s.p95` -> `TTFT p95`; unknown names pass as they are."""
    head, _, statistic = name.partition(".")
    text = _NAMES.get(head, (head, ""))[0]
    return f"{text} {statistic}" if statistic else text


def unit(name: str) -> str:
    """Unit of the stored value: `s`, `%` (stored as a share), `req/s`, ... or nothing."""
    return _NAMES.get(name.partition(".")[0], ("", ""))[1]


def number(value: Any) -> str:
    """Three digits for people: 0.123, 4.56, 78.9, 1,235; a dash where there is no finite number."""
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return DASH if value is None else str(value)
    if not math.isfinite(value):
        return DASH
    size = abs(value)
    if size >= 1e9:
        return f"{value:.3g}"
    if isinstance(value, int) or size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """A duration: `0.87 ms`, `12.3 ms`, `1.20 s`."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{number(value * 1000.0)} ms" if abs(value) < 1 else f"{number(float(value))} s"


def share(value: float | None, digits: int = 1) -> str:
    """A fraction as percent."""
    return DASH if value is None or not math.isfinite(value) else f"{value * 100:.{digits}f} %"


def signed_share(value: float | None) -> str:
    """A relative change: `+12.3 %`; from tenfold on as a factor, which is easier to grasp."""
    if value is None or not math.isfinite(value):
        return DASH
    if value >= 9:
        return f"×{number(value + 1)}"
    return f"{round(value * 100, 1) + 0.0:+.1f} %"  # + 0.0 turns -0.0 into 0.0


def limit(value: float) -> str:
    """A duration as one would write it in a scenario: `600 ms`, `2 s`."""
    return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"


def shown(name: str, value: Any) -> str:
    """A figure with its unit."""
    kind = unit(name)
    if value is None:
        return DASH
    if kind == "s":
        return seconds(value)
    if kind == "%":
        return share(value)
    return f"{number(value)} {kind}".strip() if number(value) != DASH else DASH


def parameter(value: Any) -> str:
    """An engine parameter as one would type it."""
    if value is None:
        return DASH
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def parameter_label(name: str) -> str:
    """`max_num_batched_tokens (tokens/step)`."""
    found = PARAMETER_UNITS.get(name, "")
    return f"{name} ({found})" if found else name


def scale_of(name: str, values: Iterable[float | None]) -> tuple[float, str]:
    """(factor, unit) for an axis that shows `values`: seconds become ms unless most are over 10 s."""
    kind = unit(name)
    if kind == "%":
        return 100.0, "%"
    if kind != "s":
        return 1.0, kind
    sizes = sorted(abs(value) for value in values if value is not None and math.isfinite(value))
    typical = sizes[len(sizes) // 2] if sizes else 0.0
    return (1.0, "s") if typical > 10 else (1000.0, "ms")


def axis_label(name: str, unit_text: str) -> str:
    """`TTFT p95 (ms)`."""
    return f"{label(name)} ({unit_text})" if unit_text else label(name)


def value_of(metrics: Any, name: str) -> float | None:
    """A figure of an object `M` by name (`ttft_s.p95`); None where it is absent."""
    head, _, statistic = name.partition(".")
    value = None if metrics is None else metrics.get(head)
    if statistic:
        value = value.get(statistic) if isinstance(value, dict) else None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None


def num_samples(metrics: Any, name: str) -> int | None:
    """How many samples a latency statistic rests on; None for other figures."""
    head = name.partition(".")[0]
    found = None if metrics is None else metrics.get(head)
    return found.get("num_samples") if isinstance(found, dict) else None
