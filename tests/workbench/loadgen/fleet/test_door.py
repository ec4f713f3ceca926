"""Who is turned away: by rate, by the queue, by the wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.loadgen.fleet.door import TokenBucket
from workbench.metrics.records import Outcome
from workbench.services.evaluate import RunResult

from .conftest import RunFleet

_STEADY = {
    "arrivals": {"kind": "constant", "rate": 10},
    "classes": [{"name": "chat", "count": 40, "input_tokens": 50, "output_tokens": 4}],
}
_OVERLOAD = {
    "arrivals": {"kind": "poisson", "rate": 30},
    "classes": [{"name": "chat", "count": 600, "input_tokens": 1500, "output_tokens": 100}],
}


def _reasons(result: RunResult) -> dict[str, int]:
    assert result.record.fleet is not None
    return dict(result.record.fleet["not_served"])


def test_token_bucket_lets_its_burst_and_then_its_rate_through() -> None:
    bucket = TokenBucket(rate_per_s=2.0, size=3.0)

    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(0.5), bucket.take(0.6)] == [True, False]
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("limit", "accepted"),
    [
        ({"requests_per_s": 5, "per": "all"}, [0, 2, 4, 6]),
        ({"requests_per_s": 5, "burst": 3, "per": "all"}, [0, 1, 2, 3]),
        ({"requests_per_s": 10, "per": "class"}, [0, 1, 2, 3]),
    ],
)
def test_rate_limit_of_evenly_spaced_requests_accepts_those_it_has_tokens_for(
    run_fleet: RunFleet, limit: dict[str, Any], accepted: list[int]
) -> None:
    table = run_fleet(_STEADY, rate_limit=limit).record.requests

    done = np.flatnonzero(table.outcome == Outcome.COMPLETED).tolist()
    assert done[: len(accepted)] == accepted
    assert ((table.outcome == Outcome.COMPLETED) | (table.outcome == Outcome.REJECTED)).all()
    assert all(message.startswith("429") for message in table.errors.values())


def test_rate_limit_per_client_lets_many_clients_send_more_than_one(run_fleet: RunFleet) -> None:
    few = run_fleet(_STEADY, rate_limit={"requests_per_s": 0.5, "clients": 1}).record.requests
    many = run_fleet(_STEADY, rate_limit={"requests_per_s": 0.5, "clients": 1000}).record.requests

    assert (few.outcome == Outcome.COMPLETED).sum() == 2  # at 0 s and at 2 s of 3.9 s
    assert (many.outcome == Outcome.COMPLETED).sum() >= 38


def test_rate_limit_per_client_counts_the_turns_of_a_conversation_together(run_fleet: RunFleet) -> None:
    talk = {"name": "talk", "count": 5, "input_tokens": 50, "output_tokens": 4, "conversation": {"turns": 3}}
    workload = {"arrivals": {"kind": "constant", "rate": 10}, "classes": [talk]}

    result = run_fleet(workload, rate_limit={"requests_per_s": 0.01, "clients": 1_000_000})

    turns = result.workload.turn[[result.workload.request_ids.index(i) for i in result.record.requests.request_ids]]
    done = result.record.requests.outcome == Outcome.COMPLETED
    assert done[turns == 0].all()
    assert not done[turns > 0].any()


def test_deadline_over_capacity_keeps_every_wait_within_it(run_fleet: RunFleet) -> None:
    result = run_fleet(_OVERLOAD, replicas=2, deadline_s=2)

    table, reasons = result.record.requests, _reasons(result)
    started = np.isfinite(table.first_scheduled_s)
    given_up = [message for message in table.errors.values() if message.startswith("504")]
    assert (table.first_scheduled_s - table.arrival_s)[started].max() <= 2.0
    assert (started == (table.outcome == Outcome.COMPLETED)).all()
    assert set(reasons) == {"deadline_foreseen", "deadline_passed"}
    assert reasons["deadline_passed"] == len(given_up) == (table.outcome == Outcome.FAILED).sum()
    assert reasons["deadline_foreseen"] == (table.outcome == Outcome.REJECTED).sum()


def test_limits_that_turn_requests_away_leave_the_run_valid_and_count_as_missed(run_fleet: RunFleet) -> None:
    result = run_fleet(_OVERLOAD, replicas=2, queue_limit=4)

    overall = result.summary.overall
    assert _reasons(result)["queue_limit"] > 100
    assert result.verdict.status.value == "VALID", result.verdict.messages
    assert overall.slo_attainment == pytest.approx(overall.num_completed / overall.num_requests)
    assert any("over the queue limit (429)" in note for note in result.record.notes)


def test_prompt_too_long_for_every_pool_leaves_the_run_in_doubt(run_fleet: RunFleet) -> None:
    result = run_fleet(
        _STEADY, pools=[{"name": "tiny", "max_input_tokens": 49}, {"name": "small", "max_input_tokens": 48}]
    )

    assert result.verdict.status.value == "INVALID"
    assert _reasons(result) == {"too_long": 40}
