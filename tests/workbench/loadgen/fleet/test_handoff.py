"""Prompts on one replica, answers on another, KV caches over a link."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.metrics.definitions import first_token_s
from workbench.metrics.records import Outcome, RequestTable

from .conftest import WORKLOAD, RunFleet

_POOLS = [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"}]
_BYTES_PER_TOKEN = 57_344  # Qwen2.5-7B, bfloat16


def _alone(prompt: int, output: int = 5) -> dict[str, Any]:
    kind = {"name": "one", "count": 1, "input_tokens": prompt, "output_tokens": output}
    return {"arrivals": {"kind": "all_at_once"}, "classes": [kind]}


def _token_s(table: RequestTable, number: int) -> float:
    return float(table.token_times_s[table.token_offsets[0] + number])


def test_handoff_of_a_lone_request_has_the_first_token_of_one_instance(run_fleet: RunFleet) -> None:
    one = run_fleet(_alone(3000)).record.requests
    split = run_fleet(_alone(3000), pools=_POOLS, link={"bandwidth_gb_per_s": 1e9}).record.requests

    assert first_token_s(split).tolist() == first_token_s(one).tolist()
    assert split.num_output_tokens.tolist() == [5]


@pytest.mark.parametrize("prompt", [3000, 64])
def test_handoff_at_half_the_bandwidth_delays_the_second_token_by_the_transfer(
    run_fleet: RunFleet, prompt: int
) -> None:
    fast = run_fleet(_alone(prompt), pools=_POOLS, link={"bandwidth_gb_per_s": 2}).record.requests
    slow = run_fleet(_alone(prompt), pools=_POOLS, link={"bandwidth_gb_per_s": 1}).record.requests

    transfer_s = prompt * _BYTES_PER_TOKEN / 2e9
    assert _token_s(slow, 0) == _token_s(fast, 0)
    assert _token_s(slow, 1) - _token_s(fast, 1) == pytest.approx(transfer_s, rel=1e-9)
    assert _token_s(slow, 4) - _token_s(fast, 4) == pytest.approx(transfer_s, rel=1e-9)


def test_handoff_adds_the_latency_of_the_link_once(run_fleet: RunFleet) -> None:
    near = run_fleet(_alone(1000), pools=_POOLS, link={"bandwidth_gb_per_s": 2}).record.requests
    far = run_fleet(_alone(1000), pools=_POOLS, link={"bandwidth_gb_per_s": 2, "latency_us": 4000}).record.requests

    assert _token_s(far, 4) - _token_s(near, 4) == pytest.approx(0.004, rel=1e-9)


def test_handoff_gives_the_receiver_blocks_for_the_prompt_and_one_token_to_compute(run_fleet: RunFleet) -> None:
    steps = run_fleet(_alone(1000), pools=_POOLS, link={"bandwidth_gb_per_s": 2}).record.steps

    prefill, decode = steps.by_replica()

    assert prefill.num_scheduled_tokens.tolist() == [1000]
    assert decode.num_scheduled_tokens.tolist()[:4] == [1, 1, 1, 1]
    assert decode.num_blocks_in_use[0] == 63  # 1,001 positions in blocks of 16
    assert decode.num_kv_tokens[0] == 1001
    assert decode.num_prefill_tokens.sum() == 0


def test_handoff_sends_one_cache_after_the_other_over_a_slow_link(run_fleet: RunFleet) -> None:
    pair = _alone(1000)
    pair["classes"][0]["count"] = 2

    result = run_fleet(pair, pools=_POOLS, link={"bandwidth_gb_per_s": 0.1})

    fleet, table = result.record.fleet, result.record.requests
    assert fleet is not None
    transfer_s = 1000 * _BYTES_PER_TOKEN / 0.1e9
    second = [float(table.token_times_s[offset + 1]) for offset in table.token_offsets[:-1]]
    gap_s = abs(float(np.diff(first_token_s(table))[0]))
    assert fleet["transfers"]["num"] == 2
    assert fleet["transfers"]["bytes"] == 2 * 1000 * _BYTES_PER_TOKEN
    assert fleet["transfers"]["mean_wait_s"] == pytest.approx((transfer_s - gap_s) / 2)
    assert abs(second[1] - second[0]) == pytest.approx(transfer_s, abs=0.02)


def test_handoff_of_one_token_answers_moves_nothing(run_fleet: RunFleet) -> None:
    result = run_fleet(_alone(1000, output=1), pools=_POOLS, link={"bandwidth_gb_per_s": 2})

    assert result.record.fleet is not None
    assert result.record.fleet["transfers"]["num"] == 0
    assert (result.record.requests.outcome == Outcome.COMPLETED).all()


def test_handoff_keeps_prompts_from_stretching_the_gaps_between_tokens(run_fleet: RunFleet) -> None:
    link = {"bandwidth_gb_per_s": 25}

    mixed = run_fleet(WORKLOAD, replicas=2).summary.overall
    split = run_fleet(WORKLOAD, pools=_POOLS, link=link).summary.overall

    assert mixed.itl_s.p99 is not None
    assert split.itl_s.p99 is not None
    assert split.itl_s.p99 < mixed.itl_s.p99
    assert split.num_completed == mixed.num_completed == 120


def test_handoff_counts_prefix_hits_where_prompts_are_computed(run_fleet: RunFleet) -> None:
    kind = {"name": "chat", "count": 60, "input_tokens": 64, "output_tokens": 16, "shared_prefix": {"tokens": 1024}}
    workload = {"arrivals": {"kind": "poisson", "rate": 10}, "classes": [kind]}

    one = run_fleet(workload).summary.overall
    split = run_fleet(workload, pools=_POOLS, link={"bandwidth_gb_per_s": 25}).summary.overall

    assert one.prefix_hit_rate == pytest.approx(59 / 60 * 1024 / 1088, abs=0.02)
    assert split.prefix_hit_rate == pytest.approx(one.prefix_hit_rate)


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_handoff_survives_the_failure_of_either_side(run_fleet: RunFleet, name: str) -> None:
    pools = [pool | {"replicas": 2} for pool in _POOLS]
    failure = {"replica": name, "at_s": 5, "restart_after_s": 3}

    result = run_fleet(WORKLOAD, pools=pools, link={"bandwidth_gb_per_s": 0.2}, failures=[failure])

    table, fleet = result.record.requests, result.record.fleet
    assert fleet is not None
    assert fleet["num_retries"] == fleet["failures"][0]["num_requests"] > 0
    assert (table.outcome == Outcome.COMPLETED).all()
    assert (table.num_output_tokens == 80).all()


def test_handoff_to_a_full_decode_pool_refuses_at_the_door(run_fleet: RunFleet) -> None:
    kind = {"name": "chat", "count": 200, "input_tokens": 100, "output_tokens": 200}
    workload = {"arrivals": {"kind": "poisson", "rate": 40}, "classes": [kind]}
    engine, link = {"max_num_seqs": 16}, {"bandwidth_gb_per_s": 25}

    unbounded = run_fleet(workload, engine, pools=_POOLS, link=link)
    limited = run_fleet(workload, engine, pools=_POOLS, link=link, queue_limit=4)

    table = limited.record.requests
    assert all("requests wait at decode-0, queue_limit is 4" in message for message in table.errors.values())
    assert (table.outcome == Outcome.REJECTED).sum() > 50
    assert limited.summary.overall.tpot_s.p95 is not None
    assert unbounded.summary.overall.tpot_s.p95 is not None
    assert limited.summary.overall.tpot_s.p95 < unbounded.summary.overall.tpot_s.p95 / 2.0
