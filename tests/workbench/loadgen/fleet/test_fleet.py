"""A fleet as a load target: exactness against one engine, pacing across replicas, refusals."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from workbench.loadgen.errors import RunFailed
from workbench.metrics.records import Outcome
from workbench.scenario.loader import parse_scenario
from workbench.services.evaluate import RunResult, run_scenario

_OPEN = {
    "arrivals": {"kind": "poisson", "rate": 8},
    "classes": [{"name": "chat", "count": 120, "input_tokens": 600, "output_tokens": 80}],
}
_CLOSED = _OPEN | {"arrivals": {"kind": "closed_loop", "concurrency": 6}}
_CAPPED = _OPEN | {"max_concurrency": 5}
_TURNS = {
    "arrivals": {"kind": "poisson", "rate": 4},
    "classes": [
        {"name": "talk", "count": 30, "input_tokens": 50, "output_tokens": 40, "conversation": {"turns": 3}}
    ],
}  # fmt: skip


def _run(workload: dict[str, Any], engine: dict[str, Any] | None = None, **target: Any) -> RunResult:
    document = {
        "name": "fleet",
        "seed": 2,
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "engine": {"max_model_len": 4096, **(engine or {})},
        "target": {"kind": "simulated", "gpu": "a100-80g-sxm", **target},
        "workload": workload,
    }
    return run_scenario(parse_scenario(json.dumps(document)))


_IDLE_FEATURES = {
    "rate_limit": {"requests_per_s": 1e6, "burst": 1000},
    "deadline_s": 1e6,
    "autoscaling": {"max_replicas": 1, "interval_s": 0.5},
    "failures": [{"replica": 0, "at_s": 1e6}],
}


@pytest.mark.parametrize("features", [{"queue_limit": 10_000}, _IDLE_FEATURES], ids=["queue_limit", "all that idle"])
@pytest.mark.parametrize("workload", [_OPEN, _CLOSED, _CAPPED, _TURNS], ids=["open", "closed", "capped", "turns"])
def test_fleet_of_one_gives_the_run_of_the_engine_alone(workload: dict[str, Any], features: dict[str, Any]) -> None:
    alone, fleet = _run(workload).record, _run(workload, **features).record

    assert fleet.requests.request_ids == alone.requests.request_ids
    for name in ("arrival_s", "sent_s", "first_scheduled_s", "token_times_s", "num_cached_tokens", "outcome"):
        assert np.array_equal(getattr(fleet.requests, name), getattr(alone.requests, name)), name
    assert np.array_equal(fleet.steps.end_s, alone.steps.end_s)
    assert fleet.duration_s == alone.duration_s


@pytest.mark.parametrize("routing", ["random", "round_robin", "least_loaded", "least_kv", "prefix_hash"])
def test_fleet_with_any_routing_completes_all_and_repeats_itself(routing: str) -> None:
    first, second = (_run(_OPEN, replicas=3, routing=routing) for _ in range(2))

    assert (first.record.requests.outcome == Outcome.COMPLETED).all()
    assert first.verdict.status.value == "VALID"
    assert first.record.decision_fingerprint == second.record.decision_fingerprint
    assert first.record.requests.request_ids == second.record.requests.request_ids


@pytest.mark.parametrize("workload", [_CLOSED, _TURNS], ids=["closed", "turns"])
def test_fleet_with_arrivals_that_wait_for_answers_never_sends_before_them(workload: dict[str, Any]) -> None:
    result = _run(workload, replicas=2, routing="least_loaded")
    table = result.record.requests

    assert (table.outcome == Outcome.COMPLETED).all()
    assert len(table) == len(result.workload)
    assert (table.first_scheduled_s >= table.arrival_s - 1e-9).all()
    assert result.verdict.status.value == "VALID"


def test_fleet_with_pools_only_for_short_prompts_refuses_the_others() -> None:
    workload = _OPEN | {
        "classes": [*_OPEN["classes"], {"name": "long", "count": 10, "input_tokens": 3000, "output_tokens": 8}]
    }

    table = _run(workload, pools=[{"name": "short", "replicas": 2, "max_input_tokens": 1000}]).record.requests

    refused = table.outcome == Outcome.REJECTED
    assert refused.sum() == 10
    assert (table.num_prompt_tokens[refused] == 3000).all()
    assert set(table.errors.values()) == {"no pool takes a prompt of 3000 tokens"}


def test_fleet_steps_of_each_replica_end_one_after_the_other() -> None:
    steps = _run(_OPEN, replicas=3).record.steps

    parts = list(steps.by_replica())

    assert len(parts) == 3
    assert sum(map(len, parts)) == len(steps)
    assert all((np.diff(part.end_s) >= 0.0).all() for part in parts)


def test_fleet_whose_engine_breaks_names_the_replica_and_keeps_what_was_seen() -> None:
    kind = {"name": "long", "count": 40, "input_tokens": 4000, "output_tokens": 8}
    long = {"arrivals": {"kind": "all_at_once"}, "classes": [kind]}
    full = {"gpu_memory_utilization": 0.999, "max_num_batched_tokens": 60_000}

    with pytest.raises(RunFailed, match=r"replica-\d broke: OutOfMemory: out of memory in a step of") as broken:
        _run(long, full, replicas=2)

    assert len(broken.value.record.requests) == 40
    assert (broken.value.record.requests.outcome == Outcome.UNFINISHED).any()
