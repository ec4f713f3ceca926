"""The number of replicas follows the queue."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.loadgen.fleet.pool import Pool
from workbench.loadgen.fleet.scaling import Autoscaler
from workbench.metrics.records import Outcome
from workbench.scenario.fleet import Autoscaling

from .conftest import RunFleet

_RUSH = {
    "arrivals": {
        "kind": "stages",
        "stages": [
            {"rate": 4, "duration": "10s"},
            {"rate": 40, "duration": "10s"},
            {"rate": 2, "duration": "30s"},
        ],
    },
    "classes": [{"name": "chat", "input_tokens": 1500, "output_tokens": 60}],
}
_SCALING = {
    "min_replicas": 1,
    "max_replicas": 4,
    "waiting_per_replica": 5,
    "start_up_s": 3,
    "interval_s": 1,
    "scale_down_after_s": 5,
}


def _scaler(**changes: Any) -> Autoscaler:
    return Autoscaler(Autoscaling.model_validate(_SCALING | changes), 1)


def test_autoscaler_wants_enough_for_the_queue_within_its_limits() -> None:
    scaler = _scaler()

    assert scaler.num_wanted(1.0, 5, 1) == 1
    assert scaler.num_wanted(2.0, 6, 1) == 2
    assert scaler.num_wanted(3.0, 500, 2) == 4


def test_autoscaler_lets_one_go_when_no_look_in_the_window_wanted_it_and_the_next_as_much_later() -> None:
    scaler = _scaler()

    assert scaler.num_wanted(1.0, 20, 1) == 4
    assert [scaler.num_wanted(when_s, 0, 4) for when_s in (2.0, 3.0, 4.0, 5.0, 6.0)] == [4] * 5
    assert scaler.num_wanted(7.0, 0, 4) == 3
    assert [scaler.num_wanted(when_s, 0, 3) for when_s in (8.0, 9.0, 10.0, 11.0)] == [3] * 4
    assert scaler.num_wanted(12.0, 0, 3) == 2
    assert scaler.num_wanted(13.0, 15, 2) == 3


def test_autoscaling_in_a_rush_adds_replicas_after_their_start_up_and_lets_them_go(run_fleet: RunFleet) -> None:
    result = run_fleet(_RUSH, autoscaling=_SCALING)

    fleet, table = result.record.fleet, result.record.requests
    assert fleet is not None
    ups = [up for _, up, _ in fleet["counts"]]
    assert (table.outcome == Outcome.COMPLETED).all()
    assert max(ups) == fleet["most_replicas"] == 4
    assert min(ups) == ups[0] == ups[-1] == 1
    assert all(up + starting <= 4 for _, up, starting in fleet["counts"])
    ordered = next(when_s for when_s, _, starting in fleet["counts"] if starting)
    ready = next(when_s for when_s, up, _ in fleet["counts"] if up > 1)
    assert ordered > 10.0
    assert ready - ordered == pytest.approx(3.0)


def test_autoscaling_costs_less_than_its_most_replicas_all_the_time_and_more_than_its_fewest(
    run_fleet: RunFleet,
) -> None:
    fleet = run_fleet(_RUSH, autoscaling=_SCALING).record.fleet

    assert fleet is not None
    span_s = fleet["replica_seconds"] / fleet["mean_replicas"]
    assert 1.0 < fleet["mean_replicas"] < 4.0
    assert sum(each["rented_s"] for each in fleet["replicas"]) == pytest.approx(fleet["replica_seconds"])
    assert fleet["replicas"][0]["rented_s"] == pytest.approx(span_s)
    # Paid for: all that were up or starting, and what drained for a while.
    ends_s = [*(when_s for when_s, _, _ in fleet["counts"][1:]), span_s]
    there = sum(
        (up + starting) * (end_s - when_s)
        for (when_s, up, starting), end_s in zip(fleet["counts"], ends_s, strict=True)
    )
    assert there <= fleet["replica_seconds"] + 1e-6
    assert fleet["replica_seconds"] < there + 5.0


def test_autoscaling_in_a_rush_waits_less_than_one_replica(run_fleet: RunFleet) -> None:
    alone = run_fleet(_RUSH).summary.overall.ttft_s
    scaled = run_fleet(_RUSH, autoscaling=_SCALING).summary.overall.ttft_s

    assert alone.p95 is not None
    assert scaled.p95 is not None
    assert scaled.p95 < alone.p95 / 2.0


def test_autoscaling_of_pools_is_each_pool_s_own(run_fleet: RunFleet) -> None:
    pools = [{"name": "short", "max_input_tokens": 100}, {"name": "long", "autoscaling": _SCALING}]

    fleet = run_fleet(_RUSH, pools=pools).record.fleet

    assert fleet is not None
    assert [each["name"] for each in fleet["replicas"]] == ["short-0", "long-0", "long-1", "long-2", "long-3"]
    assert fleet["replicas"][0]["num_requests"] == 0


@pytest.mark.parametrize("interval_s", [1, 0.7])
def test_autoscaler_that_need_not_look_misses_nothing(
    run_fleet: RunFleet, monkeypatch: pytest.MonkeyPatch, interval_s: float
) -> None:
    """As often as it looks in vain, rushes, failures and returns find it as if it had looked each time."""
    stages = [{"rate": rate, "duration": "8s"} for rate in (0.2, 60, 0.1, 60, 0.1, 0.1)]
    workload = {**_RUSH, "arrivals": {"kind": "stages", "stages": stages}}
    target = {
        "autoscaling": {**_SCALING, "min_replicas": 2, "interval_s": interval_s},
        "replicas": 2,
        "failures": [{"replica": 1, "at_s": 3, "restart_after_s": 20}, {"replica": 0, "at_s": 39.3}],
    }
    resting = run_fleet(workload, **target)
    monkeypatch.setattr(Pool, "is_at_rest", lambda self: False)
    looking = run_fleet(workload, **target)

    assert resting.record.fleet is not None
    assert looking.record.fleet is not None
    assert max(up for _, up, _ in looking.record.fleet["counts"]) > 2
    assert [up for _, up, _ in resting.record.fleet["counts"]] == [up for _, up, _ in looking.record.fleet["counts"]]
    assert resting.record.fleet["replica_seconds"] == pytest.approx(looking.record.fleet["replica_seconds"])
    times = resting.record.requests.token_times_s
    assert times == pytest.approx(looking.record.requests.token_times_s, nan_ok=True)


def test_autoscaling_over_centuries_without_requests_comes_to_its_end(run_fleet: RunFleet) -> None:
    workload = {**_RUSH, "arrivals": {"kind": "poisson", "rate": 1e-9}, "num_requests": 3}

    table = run_fleet(workload, autoscaling=_SCALING).record.requests

    assert (table.outcome == Outcome.COMPLETED).all()
