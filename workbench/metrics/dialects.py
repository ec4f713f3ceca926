"""The same run in the words of other tools: their formulas, over our record of the requests.

Read in vLLM 0.33 `vllm bench serve`, GuideLLM 0.8.1, AIPerf 0.13 and inference-perf (7de5ef2). None of them trims a
run, so every request counts here, those in `measurement.warm_up` too. Their clocks start when a request is *sent*;
what it waited before that they show apart or not at all. Our record lacks the end of a stream after its last token:
where a tool takes that, the last token stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.metrics import definitions as of
from workbench.metrics.attainment import SloPolicy
from workbench.metrics.definitions import BoolArray
from workbench.metrics.distributions import Distribution, linear, stepwise, with_failures
from workbench.metrics.records import FloatArray, RequestTable, RunRecord

_MS = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of a tool's output."""

    value: float | int | Distribution | None
    """None = absent."""
    definition: str

    def to_json(self) -> Any:
        return self.value.to_dict() if isinstance(self.value, Distribution) else self.value


Report = Mapping[str, Figure]
"""The tool's name of a figure, unit included -> figure."""


@dataclass(frozen=True, slots=True)
class _Run:
    """What all dialects start from: completed requests, timed from when they were sent."""

    record: RunRecord
    policy: SloPolicy

    @property
    def table(self) -> RequestTable:
        return self.record.requests

    @property
    def done(self) -> BoolArray:
        return of.is_completed(self.table)

    @property
    def duration_s(self) -> float | None:
        """First request sent to last token of any request."""
        if len(self.table.token_times_s) == 0 or np.isnan(self.table.sent_s).all():
            return None
        return float(self.table.token_times_s.max() - np.nanmin(self.table.sent_s))

    @property
    def num_done(self) -> int:
        return int(self.done.sum())

    @property
    def outputs(self) -> int:
        return int(self.table.num_output_tokens[self.done].sum())

    @property
    def prompts(self) -> int:
        return int(self.table.num_prompt_tokens[self.done].sum())

    @property
    def lengths(self) -> FloatArray:
        """[n] output tokens of completed requests."""
        return np.asarray(self.table.num_output_tokens[self.done], dtype=np.float64)

    def ms(self, figure: Callable[[RequestTable], FloatArray]) -> FloatArray:
        """[n] of completed requests, ms."""
        return np.asarray(figure(self.table)[self.done] * _MS)

    @property
    def token_gaps_ms(self) -> FloatArray:
        """Pooled gaps between tokens; 0 between tokens of one chunk."""
        return np.asarray(of.itl_s(self.table, self.done) * _MS)

    @property
    def chunk_gaps_ms(self) -> FloatArray:
        """Pooled gaps between chunks: tokens of one chunk have one time."""
        is_single = self.table.num_events == of.token_counts(self.table)
        single = of.itl_s(self.table, self.done & is_single)
        several = of.itl_s(self.table, self.done & ~is_single)
        return np.concatenate([single, several[several > 0]]) * _MS

    def per_second(self, count: float) -> float | None:
        return count / self.duration_s if self.duration_s else None

    def judge(self, tpot: Callable[[RequestTable], FloatArray], *, single_token: bool | None) -> _Judged:
        """Requests against the SLO's limits, all timed from when they were sent. `single_token` says whether a request
        with fewer than two tokens meets a TPOT limit; None leaves it out of the judgement."""
        figures = {"ttft_s": of.ttft_service_s(self.table), "tpot_s": tpot(self.table)}
        figures["e2el_s"] = of.e2el_service_s(self.table)
        good, is_judged, has_slo = self.done, np.ones(len(self.table), dtype=np.bool_), False
        is_short = self.table.num_output_tokens < 2
        for number, name in enumerate(self.table.class_names):
            slo, other = self.policy.of_class(name), self.table.class_index != number
            for limit in slo.limits if slo is not None else ():
                if limit.metric not in figures or limit.is_mean:
                    continue  # no tool judges single requests by it
                has_slo = True
                met = figures[limit.metric] <= limit.limit_s
                if limit.metric == "tpot_s":
                    met = np.where(is_short, bool(single_token), met)
                    if single_token is None:
                        is_judged &= other | ~is_short | ~self.done
                good = good & (met | other)
        return _Judged(good=np.asarray(good & is_judged), is_judged=np.asarray(is_judged)) if has_slo else _NO_SLO


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    good: BoolArray | None
    """None without an SLO."""
    is_judged: BoolArray | None

    @property
    def num_good(self) -> int:
        return 0 if self.good is None else int(self.good.sum())

    def share_of(self, requests: BoolArray) -> float | None:
        if self.good is None or not requests.any():
            return None
        return float(self.good[requests].mean())


_NO_SLO = _Judged(good=None, is_judged=None)


def vllm(record: RunRecord, policy: SloPolicy | None = None) -> Report:
    """`vllm bench serve`."""
    run = _Run(record, policy or SloPolicy())
    judged = run.judge(of.tpot_s, single_token=True)
    return {
        **_counts(run),
        "duration_s": Figure(value=run.duration_s, definition="first request sent to last token, drain included"),
        "request_throughput": Figure(value=run.per_second(run.num_done), definition="completed / duration"),
        "request_goodput": Figure(
            value=None if judged.good is None else run.per_second(judged.num_good),
            definition="completed within every limit / duration; fewer than two tokens meet a TPOT limit",
        ),
        "output_throughput": Figure(value=run.per_second(run.outputs), definition="output tokens / duration"),
        "total_token_throughput": Figure(
            value=run.per_second(run.outputs + run.prompts), definition="(prompt + output tokens) / duration"
        ),
        "ttft_ms": Figure(value=linear(run.ms(of.ttft_service_s)), definition="first chunk - sent"),
        "tpot_ms": Figure(
            value=linear(run.ms(of.tpot_s)), definition="(E2EL - TTFT) / (n - 1) per request; left out for n < 2"
        ),
        "itl_ms": Figure(value=linear(run.chunk_gaps_ms), definition="gaps between chunks, pooled over all requests"),
        "e2el_ms": Figure(value=linear(run.ms(of.e2el_service_s)), definition="last chunk - sent"),
    }


def guidellm(record: RunRecord, policy: SloPolicy | None = None) -> Report:
    """GuideLLM's figures of successful requests."""
    run = _Run(record, policy or SloPolicy())
    judged = run.judge(of.tpot_s, single_token=None)
    tpot = run.ms(of.e2el_service_s) / np.maximum(run.lengths, 1)
    return {
        **_counts(run),
        "requests_per_second": Figure(value=run.per_second(run.num_done), definition="completed / duration"),
        "output_tokens_per_second": Figure(value=run.per_second(run.outputs), definition="output tokens / duration"),
        "tokens_per_second": Figure(
            value=run.per_second(run.outputs + run.prompts), definition="(prompt + output tokens) / duration"
        ),
        "request_latency_s": Figure(
            value=stepwise(run.ms(of.e2el_service_s) / _MS), definition="end of the stream (here: last token) - sent"
        ),
        "time_to_first_token_ms": Figure(
            value=stepwise(np.nan_to_num(run.ms(of.ttft_service_s))), definition="first token - sent; 0 where none came"
        ),
        "time_per_output_token_ms": Figure(
            value=stepwise(tpot, run.lengths),
            definition="(last token - sent) / n: contains TTFT; a request weighs n",
        ),
        "inter_token_latency_ms": Figure(
            value=stepwise(np.nan_to_num(run.ms(of.tpot_s)), np.maximum(run.lengths - 1, 0)),
            definition="(last - first token) / (n - 1); a request weighs n - 1",
        ),
        "goodput_fraction": Figure(
            value=judged.share_of(judged.is_judged) if judged.is_judged is not None else None,
            definition="good / (good + violations): failures violate, n < 2 is left out with a TPOT limit, which is "
            "compared with inter_token_latency",
        ),
    }


def aiperf(record: RunRecord, policy: SloPolicy | None = None) -> Report:
    """AIPerf."""
    run = _Run(record, policy or SloPolicy())
    judged = run.judge(of.tpot_s, single_token=False)
    num_failed = len(run.table) - run.num_done
    everybody = np.ones(len(run.table), dtype=np.bool_)
    return {
        **_counts(run),
        "benchmark_duration_s": Figure(value=run.duration_s, definition="first request sent to last response"),
        "request_throughput": Figure(value=run.per_second(run.num_done), definition="completed / duration"),
        "output_token_throughput": Figure(value=run.per_second(run.outputs), definition="output tokens / duration"),
        "goodput": Figure(
            value=None if judged.good is None else run.per_second(judged.num_good),
            definition="completed within every limit / duration; fewer than two tokens miss a TPOT limit",
        ),
        "good_request_fraction": Figure(value=judged.share_of(everybody), definition="good / (completed + failed)"),
        "time_to_first_token_ms": Figure(value=linear(run.ms(of.ttft_service_s)), definition="first content - sent"),
        "inter_token_latency_ms": Figure(
            value=linear(run.ms(of.tpot_s)), definition="(request latency - TTFT) / (n - 1) per request: vLLM's TPOT"
        ),
        "inter_chunk_latency_ms": Figure(
            value=linear(run.chunk_gaps_ms), definition="gaps between chunks, pooled: vLLM's ITL"
        ),
        "request_latency_ms": Figure(value=linear(run.ms(of.e2el_service_s)), definition="last content - sent"),
        "adj_request_latency_ms": Figure(
            value=with_failures(run.ms(of.e2el_service_s), num_failed),
            definition="request latency with every failure at infinity; the nearest order statistic",
        ),
        "effective_latency_ms": Figure(
            value=linear(run.ms(of.e2el_s)), definition="last content - scheduled arrival: waiting in the client counts"
        ),
    }


def inference_perf(record: RunRecord, policy: SloPolicy | None = None) -> Report:
    """inference-perf's report."""
    run = _Run(record, policy or SloPolicy())
    judged = run.judge(of.tpot_s, single_token=False)
    ttft = np.where(run.lengths > 1, run.ms(of.ttft_service_s), np.nan)
    return {
        **_counts(run),
        "requests_per_sec": Figure(value=run.per_second(run.num_done), definition="completed / duration"),
        "output_tokens_per_sec": Figure(value=run.per_second(run.outputs), definition="output tokens / duration"),
        "total_tokens_per_sec": Figure(
            value=run.per_second(run.outputs + run.prompts), definition="(prompt + output tokens) / duration"
        ),
        "request_latency_ms": Figure(
            value=linear(run.ms(of.e2el_service_s)), definition="end of the response (here: last token) - sent"
        ),
        "time_to_first_token_ms": Figure(value=linear(ttft), definition="first token - sent; left out for n < 2"),
        "time_per_output_token_ms": Figure(
            value=linear(run.ms(of.tpot_s)), definition="(last - first token) / (n - 1) per request; left out for n < 2"
        ),
        "normalized_time_per_output_token_ms": Figure(
            value=linear(run.ms(of.e2el_service_s) / np.maximum(run.lengths, 1)),
            definition="request latency / n: contains TTFT",
        ),
        "inter_token_latency_ms": Figure(
            value=linear(run.token_gaps_ms), definition="gaps between tokens, pooled; 0 between tokens of one chunk"
        ),
        "schedule_delay_ms": Figure(value=linear(run.ms(of.client_lag_s)), definition="sent - scheduled arrival"),
        "goodput_percent": Figure(
            value=None if (share := judged.share_of(run.done)) is None else 100.0 * share,
            definition="good / completed, in percent: failures are left out; fewer than two tokens miss a TPOT limit",
        ),
    }


def _counts(run: _Run) -> dict[str, Figure]:
    return {
        "num_requests": Figure(value=len(run.table), definition="requests issued"),
        "num_completed": Figure(value=run.num_done, definition="answered in full; latencies are theirs alone"),
    }


DIALECTS: Mapping[str, Callable[..., Report]] = {
    "vllm": vllm,
    "guidellm": guidellm,
    "aiperf": aiperf,
    "inference-perf": inference_perf,
}
"""Name on the command line -> its figures."""
