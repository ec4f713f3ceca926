"""Evidence from a server's /metrics page: one dump, or several in order of time.

Names of vLLM (V1 and, where they differ, V0) and of this project's server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from workbench.capacity.diagnosis.evidence import Column, Evidence, Limits, Preemptions, PrefixFacts, Timeline, Traffic

_PREFIX = re.compile(r"^(?:vllm|workbench)[:_]")
_SAMPLE = re.compile(r"^(?:vllm|workbench)[:_]\w+(?:\{.*\})?\s+\S+", re.MULTILINE)
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "preemptions": ("num_preemptions",),
    "queries": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "hits": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "hit_rate": ("gpu_prefix_cache_hit_rate",),
    "finished": ("request_success",),
    "prompt_tokens": ("prompt_tokens",),
    "output_tokens": ("generation_tokens",),
}
"""Our name -> theirs, newest first, without prefix and `_total`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dump:
    values: Mapping[str, float]
    """Sums over labels (usage: the greatest)."""
    buckets: Mapping[str, Sequence[tuple[float, float]]]
    """Histogram -> (upper bound, cumulative count), ascending."""
    labels: Mapping[str, str]
    """Of `cache_config_info`."""


def is_metrics_dump(text: str) -> bool:
    return _SAMPLE.search(text) is not None


def read_metrics_dumps(texts: Iterable[str]) -> Evidence:
    """Evidence of dumps in order of time; one text may hold several, one after the other.

    Raises `ValueError` for text that is not in the Prometheus format.
    """
    dumps = [_parse(part) for text in texts for part in _split(text)]
    first, last = dumps[0], dumps[-1]
    since = first if len(dumps) > 1 else None
    return Evidence(
        source="metrics dump",
        timeline=Timeline(
            running=_column(dumps, "running"), waiting=_column(dumps, "waiting"), kv_usage=_column(dumps, "usage")
        ),
        limits=_limits(last.labels),
        traffic=_traffic(since, last),
        preemptions=_preemptions(since, last),
        prefix=PrefixFacts(hit_rate=_hit_rate(since, last)),
        notes=("one dump shows a moment: take several, ten seconds apart, to see whether the queue grows",)
        if since is None
        else (),
    )


def _split(text: str) -> Iterator[str]:
    """Scrapes that were written one after the other: the first metric's name starts each."""
    lines = [line for line in text.splitlines() if line.strip()]
    heads = [line for line in lines if _PREFIX.match(line) or line.startswith("# HELP")]
    if not heads:
        return
    first = heads[0] if heads[0].startswith("#") else re.split(r"\s+(?=\S+$)", heads[0])[0]
    part: list[str] = []
    for line in lines:
        if line.startswith(first) and part:
            yield "\n".join(part) + "\n"
            part = []
        part.append(line)
    yield "\n".join(part) + "\n"


def _parse(text: str) -> _Dump:
    values: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    labels: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not _PREFIX.match(sample.name) or not math.isfinite(sample.value):
                continue
            name = _PREFIX.sub("", sample.name)
            if name.endswith("_bucket"):
                bounds = buckets.setdefault(name.removesuffix("_bucket"), {})
                bound = float(sample.labels.get("le", "inf"))
                bounds[bound] = bounds.get(bound, 0.0) + sample.value
            elif name.startswith("cache_config_info"):
                labels.update(sample.labels)
            else:
                key = name.removesuffix("_total")
                is_share = key.endswith(("_perc", "_rate"))
                values[key] = (
                    max(values.get(key, 0.0), sample.value) if is_share else values.get(key, 0.0) + sample.value
                )
    return _Dump(values=values, buckets={key: sorted(found.items()) for key, found in buckets.items()}, labels=labels)


def _value(dump: _Dump, name: str) -> float | None:
    return next((dump.values[alias] for alias in _ALIASES[name] if alias in dump.values), None)


def _column(dumps: Sequence[_Dump], name: str) -> Column:
    missing = math.nan if name == "usage" else 0.0
    found = [_value(dump, name) for dump in dumps]
    return np.array([missing if value is None else value for value in found], dtype=np.float64)


def _since(first: _Dump | None, last: _Dump, name: str) -> float | None:
    """Growth of a counter over the dumps; its whole value for a single dump or after a restart."""
    now = _value(last, name)
    before = None if first is None else _value(first, name)
    return now if now is None or before is None or before > now else now - before


def _hit_rate(first: _Dump | None, last: _Dump) -> float | None:
    queries, hits = _since(first, last, "queries"), _since(first, last, "hits")
    if queries:
        return (hits or 0.0) / queries
    return _value(last, "hit_rate")


def _preemptions(first: _Dump | None, last: _Dump) -> Preemptions:
    return Preemptions(count=int(_since(first, last, "preemptions") or 0), is_since_start=first is None)


def _traffic(first: _Dump | None, last: _Dump) -> Traffic:
    finished = _since(first, last, "finished")

    def percentile(name: str, percent: float) -> float | None:
        before = {} if first is None else dict(first.buckets.get(name, ()))
        counts = [(bound, count - before.get(bound, 0.0)) for bound, count in last.buckets.get(name, ())]
        return _percentile(counts, percent)

    prompt, output = "request_prompt_tokens", "request_generation_tokens"
    longest = [percentile(name, 100) for name in (prompt, output)]
    return Traffic(
        num_requests=None if finished is None else int(finished),
        prompt_p50=percentile(prompt, 50),
        prompt_p99=percentile(prompt, 99),
        total_max=sum(part for part in longest if part is not None) if longest[0] is not None else None,
        ttft_p50_s=percentile("time_to_first_token_seconds", 50),
        ttft_p95_s=percentile("time_to_first_token_seconds", 95),
        queue_p95_s=percentile("request_queue_time_seconds", 95),
    )


def _percentile(counts: Sequence[tuple[float, float]], percent: float) -> float | None:
    """Upper bound of the bucket that holds the percentile (the greatest finite bound for the last); None for none."""
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    finite = [bound for bound, _ in counts if math.isfinite(bound)]
    for bound, count in counts:
        if count >= total * percent / 100:
            return bound if math.isfinite(bound) else (finite[-1] if finite else None)
    return None


def _limits(labels: Mapping[str, str]) -> Limits:
    def number(name: str) -> float | None:
        try:
            return float(labels[name])
        except (KeyError, ValueError):
            return None

    blocks, size = number("num_gpu_blocks"), number("block_size")
    caching = labels.get("enable_prefix_caching")
    return Limits(
        block_size=None if size is None else int(size),
        num_blocks=None if blocks is None else int(blocks),
        gpu_memory_utilization=number("gpu_memory_utilization"),
        kv_cache_dtype="fp8" if labels.get("cache_dtype", "").startswith("fp8") else None,
        prefix_caching=None if caching is None else caching.lower() == "true",
    )
