"""What fleets are known for: each pitfall, and what takes it away, on the simulated A100 with Qwen2.5-7B."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from workbench.metrics.definitions import first_token_s
from workbench.metrics.records import Outcome
from workbench.scenario.loader import parse_scenario
from workbench.services.evaluate import RunResult, run_scenario


def _run(workload: dict[str, Any], engine: dict[str, Any] | None = None, **target: Any) -> RunResult:
    document = {
        "name": "pitfall",
        "seed": 5,
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "engine": {"max_model_len": 16384, **(engine or {})},
        "target": {"kind": "simulated", "gpu": "a100-80g-sxm", **target},
        "workload": workload,
        "slo": {"ttft_p95": "2s"},
    }
    result = run_scenario(parse_scenario(json.dumps(document)))
    assert result.verdict.status.value != "INVALID", result.verdict.messages
    return result


_MIXED = {
    "arrivals": {"kind": "poisson", "rate": 12},
    "classes": [
        {"name": "short", "count": 540, "input_tokens": 128, "output_tokens": 32},
        {"name": "long", "count": 60, "input_tokens": 15000, "output_tokens": 32},
    ],
}


@pytest.fixture(scope="module")
def short_alone() -> float:
    workload = {"arrivals": {"kind": "poisson", "rate": 10.8}, "classes": _MIXED["classes"][:1]}
    return _p95_ttft(_run(workload, replicas=2), "short")


@pytest.fixture(scope="module")
def mixed() -> RunResult:
    return _run(_MIXED, replicas=3)


def test_fleet_with_long_requests_among_short_raises_their_ttft_many_times(
    mixed: RunResult, short_alone: float
) -> None:
    assert _p95_ttft(mixed, "short") > 5.0 * short_alone


def test_fleet_with_pools_by_length_brings_the_short_class_back(mixed: RunResult, short_alone: float) -> None:
    pools = [{"name": "short", "replicas": 1, "max_input_tokens": 1000}, {"name": "long", "replicas": 2}]

    split = _run(_MIXED, pools=pools)

    assert _p95_ttft(split, "short") < 1.5 * short_alone
    assert _p95_ttft(split, "short") < _p95_ttft(mixed, "short") / 4.0


_SHARED = {
    "arrivals": {"kind": "poisson", "rate": 12},
    "classes": [
        {
            "name": "chat",
            "count": 600,
            "input_tokens": 64,
            "output_tokens": 16,
            "shared_prefix": {"tokens": 1024, "groups": 60},
        }
    ],
}


def test_prefix_hash_keeps_the_hit_rate_of_one_instance_where_random_loses_it() -> None:
    cache = {"num_blocks": 2400}  # holds about half of the 60 prefixes of 64 blocks

    one = _run(_SHARED | {"arrivals": {"kind": "poisson", "rate": 3}}, {"num_blocks": 9600})
    hashed = _run(_SHARED, cache, replicas=4, routing="prefix_hash")
    spread = _run(_SHARED, cache, replicas=4, routing="random")

    assert _hit_rate(hashed) >= 0.8 * _hit_rate(one)
    assert _hit_rate(spread) < 0.6 * _hit_rate(one)


_OVERLOAD = {
    "arrivals": {"kind": "poisson", "rate": 30},
    "classes": [{"name": "chat", "count": 900, "input_tokens": 1500, "output_tokens": 100}],
}


def test_queue_limit_over_capacity_refuses_and_keeps_the_accepted_inside_the_slo() -> None:
    unbounded = _run(_OVERLOAD, replicas=2)
    limited = _run(_OVERLOAD, replicas=2, queue_limit=8)

    table = limited.record.requests
    accepted = table.outcome == Outcome.COMPLETED
    refused = table.outcome == Outcome.REJECTED
    waits = (first_token_s(table) - table.arrival_s)[accepted]
    assert _p95_ttft(unbounded, "chat") > 4.0
    assert refused.sum() > 100
    assert (accepted | refused).all()
    assert np.percentile(waits, 95) < 2.0
    assert all("429" in message for message in table.errors.values())


def test_watermark_under_kv_pressure_trades_preemptions_for_waiting() -> None:
    workload = {
        "arrivals": {"kind": "poisson", "rate": 10},
        "classes": [{"name": "chat", "count": 400, "input_tokens": 200, "output_tokens": 600}],
    }
    engine = {"num_blocks": 2000, "enable_prefix_caching": False}

    full = _run(workload, engine).summary.overall
    roomy = _run(workload, engine | {"watermark": 0.3}).summary.overall

    assert roomy.num_preemptions is not None
    assert full.num_preemptions is not None
    assert roomy.num_preemptions < full.num_preemptions
    assert roomy.itl_s.p99 < full.itl_s.p99
    assert roomy.ttft_s.p50 > full.ttft_s.p50


_RANKED = {
    "arrivals": {"kind": "poisson", "rate": 36},
    "classes": [
        {"name": "urgent", "weight": 1, "priority": 0, "input_tokens": 1500, "output_tokens": 60},
        {"name": "bulk", "weight": 3, "priority": 1, "input_tokens": 1500, "output_tokens": 60},
    ],
    "num_requests": 600,
}


def test_priority_over_capacity_keeps_the_urgent_class_fast_on_every_replica() -> None:
    equal = _run(_RANKED, replicas=2)
    ranked = _run(_RANKED, {"scheduling_policy": "priority"}, replicas=2)

    assert _p95_ttft(equal, "urgent") > 2.0
    assert _p95_ttft(ranked, "urgent") < _p95_ttft(equal, "urgent") / 3.0
    assert _p95_ttft(ranked, "bulk") > _p95_ttft(equal, "bulk")


def test_priority_with_prefill_and_decode_apart_is_kept_on_both_sides() -> None:
    pools = [{"name": "p", "role": "prefill", "replicas": 2}, {"name": "d", "role": "decode"}]
    split = {"pools": pools, "link": {"bandwidth_gb_per_s": 25}}

    ranked = _run(_RANKED, {"scheduling_policy": "priority"}, **split)

    assert _p95_ttft(ranked, "urgent") < _p95_ttft(ranked, "bulk") / 3.0


def _p95_ttft(result: RunResult, name: str) -> float:
    value = result.summary.classes[name].ttft_s.p95
    assert value is not None
    return value


def _hit_rate(result: RunResult) -> float:
    value = result.summary.overall.prefix_hit_rate
    assert value is not None
    return value
