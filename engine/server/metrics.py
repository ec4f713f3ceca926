"""GET /metrics in the Prometheus text format. Names after the prefix are those that vLLM's users know."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.async_llm import AsyncLLM, TokenStream

PREFIX = "workbench:"
_TTFT_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TPOT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
_E2E_BUCKETS_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)


class ServerMetrics:
    """Histograms of finished requests, and the engine's own counters at the moment they are asked for."""

    def __init__(self, llm: AsyncLLM, model: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(llm, model))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(PREFIX + name, text, ["model_name"], buckets=buckets, registry=self._registry)
            return family.labels(model)

        self._ttft = histogram("time_to_first_token_seconds", "Submission to first token.", _TTFT_BUCKETS_S)
        self._tpot = histogram("request_time_per_output_token_seconds", "First token excluded.", _TPOT_BUCKETS_S)
        self._e2e = histogram("e2e_request_latency_seconds", "Submission to last token.", _E2E_BUCKETS_S)
        self._ended = Counter(
            PREFIX + "request_success", "Requests served to their end.", ["model_name"], registry=self._registry
        ).labels(model)

    def observe(self, stream: TokenStream) -> None:
        """A request ended. Those that were aborted enter the time to first token only."""
        first_s, last_s = stream.first_token_s, stream.last_token_s
        if first_s is None or last_s is None:
            return
        self._ttft.observe(first_s - stream.submitted_s)
        if not stream.is_complete:
            return
        self._ended.inc()
        self._e2e.observe(last_s - stream.submitted_s)
        num_sequences = sum(request.sampling.n for request in stream.requests)
        if num_sequences == 1 and stream.num_output_tokens > 1:
            self._tpot.observe((last_s - first_s) / (stream.num_output_tokens - 1))

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Reads counters of the engine thread: single attributes, so that nothing needs a lock."""

    def __init__(self, llm: AsyncLLM, model: str) -> None:
        self._llm, self._model = llm, model

    def collect(self) -> Iterator[Metric]:
        scheduler = self._llm.core.scheduler
        pool, prefix = scheduler.blocks.pool, scheduler.prefix_cache_stats()
        for name, text, value in (
            ("num_requests_running", "Requests that hold KV blocks.", len(scheduler.running)),
            ("num_requests_waiting", "Requests that wait for admission.", len(scheduler.waiting)),
            ("kv_cache_usage_perc", "KV blocks in use, 1 = all.", pool.num_in_use / pool.num_usable_blocks),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of requests that got a token.", self._llm.num_prompt_tokens),
            ("generation_tokens", "Tokens generated.", self._llm.num_generation_tokens),
            ("num_preemptions", "Preemptions.", scheduler.num_preemptions),
            ("prefix_cache_queries", "Tokens looked up at first admission.", prefix.queried_tokens),
            ("prefix_cache_hits", "Of these, found in the cache.", prefix.hit_tokens),
        ):
            counter = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
