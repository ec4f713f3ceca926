"""Replicas that go away and come back: nothing is lost, what was computed is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.metrics.records import Outcome, RequestTable

from .conftest import RunFleet

_BUSY = {
    "arrivals": {"kind": "poisson", "rate": 12},
    "classes": [{"name": "chat", "count": 200, "input_tokens": 600, "output_tokens": 80}],
}


def _times(table: RequestTable, row: int) -> Any:
    return table.token_times_s[table.token_offsets[row] : table.token_offsets[row + 1]]


def test_failure_with_another_replica_up_loses_no_request_and_no_token(run_fleet: RunFleet) -> None:
    failure = {"replica": 1, "at_s": 5, "restart_after_s": 4}

    result = run_fleet(_BUSY, replicas=2, failures=[failure])

    table, fleet = result.record.requests, result.record.fleet
    assert fleet is not None
    assert (table.outcome == Outcome.COMPLETED).all()
    assert (table.num_output_tokens == 80).all()
    assert all((np.diff(_times(table, row)) > 0).all() for row in range(len(table)))
    (incident,) = fleet["failures"]
    assert incident["replica"] == "replica-1"
    assert 5.0 <= incident["at_s"] < 5.1
    assert incident["back_s"] == incident["at_s"] + 4.0
    assert fleet["num_retried"] == fleet["num_retries"] == incident["num_requests"] > 3
    assert result.verdict.status.value == "VALID", result.verdict.messages


def test_failed_replica_takes_no_step_until_it_is_back(run_fleet: RunFleet) -> None:
    steps = run_fleet(_BUSY, replicas=2, failures=[{"replica": 0, "at_s": 5, "restart_after_s": 4}]).record.steps

    begins = next(iter(steps.by_replica())).start_s

    assert not ((begins > 5.1) & (begins < 9.0)).any()
    assert (begins > 9.0).any()


def test_replica_that_stays_away_leaves_its_load_to_the_others(run_fleet: RunFleet) -> None:
    result = run_fleet(_BUSY, replicas=3, failures=[{"replica": "replica-2", "at_s": 5}])

    fleet = result.record.fleet
    assert fleet is not None
    first, second, gone = fleet["replicas"]
    assert (result.record.requests.outcome == Outcome.COMPLETED).all()
    assert gone["num_requests"] < min(first["num_requests"], second["num_requests"]) / 2
    assert gone["rented_s"] == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize(("retry", "failed"), [("none", 1), ("unstarted", 0)])
def test_retry_policy_decides_what_becomes_of_requests_without_a_token(
    run_fleet: RunFleet, retry: str, failed: int
) -> None:
    one_long_prompt = {
        "arrivals": {"kind": "all_at_once"},
        "classes": [{"name": "chat", "count": 1, "input_tokens": 4000, "output_tokens": 8}],
    }

    result = run_fleet(one_long_prompt, replicas=2, failures=[{"replica": 0, "at_s": 0.01}], retry=retry)

    table = result.record.requests
    assert (table.outcome == Outcome.FAILED).sum() == failed
    assert (table.outcome == Outcome.COMPLETED).sum() == 1 - failed


def test_retry_of_unstarted_requests_alone_fails_the_streams(run_fleet: RunFleet) -> None:
    result = run_fleet(_BUSY, replicas=2, failures=[{"replica": 1, "at_s": 5}], retry="unstarted")

    table, fleet = result.record.requests, result.record.fleet
    assert fleet is not None
    lost = table.outcome == Outcome.FAILED
    assert lost.sum() == fleet["not_served"]["lost"] > 0
    assert (table.num_output_tokens[lost] > 0).all()
    assert lost.sum() + fleet["num_retries"] == fleet["failures"][0]["num_requests"]
    assert all(message.startswith("502: replica-1 failed after") for message in table.errors.values())


def test_failure_of_the_only_replica_refuses_until_it_is_back_with_an_empty_cache(run_fleet: RunFleet) -> None:
    shared = {"tokens": 800}
    kind = {"name": "chat", "count": 40, "input_tokens": 32, "output_tokens": 4, "shared_prefix": shared}
    workload = {"arrivals": {"kind": "constant", "rate": 4}, "classes": [kind]}

    result = run_fleet(workload, failures=[{"replica": 0, "at_s": 4.1, "restart_after_s": 2}])

    table = result.record.requests
    away = (table.arrival_s > 4.1) & (table.arrival_s < 6.1)
    served = np.flatnonzero(~away)
    assert (table.outcome[away] == Outcome.REJECTED).all()
    assert {table.errors[row] for row in np.flatnonzero(away)} == {"503: no replica is up"}
    assert (table.outcome[served] == Outcome.COMPLETED).all()
    cold = [row for row in served.tolist() if table.num_cached_tokens[row] == 0]
    assert cold == [0, int(served[table.arrival_s[served] > 6.1][0])]


def test_failure_after_the_end_or_of_a_replica_that_is_not_up_is_told(run_fleet: RunFleet) -> None:
    scaling = {"max_replicas": 2}

    result = run_fleet(_BUSY, autoscaling=scaling, failures=[{"replica": 0, "at_s": 900}, {"replica": 1, "at_s": 1}])

    fleet = result.record.fleet
    assert fleet is not None
    assert fleet["failures"] == []
    assert [each["replica"] for each in fleet["failures_unmet"]] == [0, 1]
    assert sum("met nobody" in note for note in result.record.notes) == 2
