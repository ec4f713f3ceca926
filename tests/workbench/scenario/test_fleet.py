"""Fleets that cannot be are refused with the rule, the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from workbench.scenario.target import SimulatedTarget

_TARGET = ("seed: 1", "seed: 1\ntarget: {kind: simulated, gpu: a100-80g-sxm}")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "target.pools=[{name: a, role: prefill}]",
            "target.pools: must be one of role prefill and one of role decode where any has a role. Add the other one",
        ),
        ("target.pools=[{name: a, role: prefill}, {name: b, role: decode}]", "target.link: is missing: prefill pools"),
        ("target.link={bandwidth_gb_per_s: 3}", "target.link: goes with pools of role prefill and decode. Remove it"),
        ("target.failures=[{replica: 4, at_s: 3}]", "target.failures.0.replica: must be under the number of replicas"),
        ("target.failures=[{replica: x-1, at_s: 3}]", "must be one of replica-0 (got 'x-1')"),
        ("target.failures=[{replica: [1], at_s: 3}]", "must be a replica's number, counted from 0, or its name"),
        ("target.failures=[{replica: -1, at_s: 3}]", "must be a replica's number, counted from 0, or its name"),
        ("target.autoscaling={max_replicas: 1, min_replicas: 3}", "max_replicas: must be at least min_replicas (3)"),
        ("target.autoscaling={max_replicas: 4, interval_s: 0.01}", "interval_s: must be at least 0.1 (got 0.01)"),
        ("target.autoscaling={max_replica: 4}", "target.autoscaling.max_replica: unknown key. did you mean"),
        ("target.rate_limit={requests_per_s: 0}", "target.rate_limit.requests_per_s: must be over 0 (got 0)"),
        ("target.rate_limit={requests_per_s: 2, per: user}", "must be one of client, class, all (got user)"),
        ("target.deadline_s=0s", "target.deadline_s: must be over 0"),
        ("target.retry=always", "target.retry: must be one of all, unstarted, none (got always)"),
        ("target.replicas=1000000", "target.replicas: must be at most 1024 (got 1000000)"),
    ],
)
def test_target_that_cannot_be_is_refused(refusal: Callable[..., str], override: str, expected: str) -> None:
    assert expected in refusal(_TARGET, overrides=(override,))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"pools": [{"name": "a"}, {"name": "b", "max_input_tokens": 5}], "autoscaling": {"max_replicas": 2}}, "pools"),
        ({"replicas": 5, "autoscaling": {"max_replicas": 2}}, "must be at most autoscaling.max_replicas (2, got 5)"),
        ({"pools": [{"name": "a", "replicas": 3, "autoscaling": {"max_replicas": 2}}]}, "autoscaling.max_replicas"),
    ],
)
def test_target_with_parts_that_clash_is_refused(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SimulatedTarget.model_validate({"kind": "simulated", "gpu": "a100-80g-sxm", **values})
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("values", "is_fleet"),
    [
        ({}, False),
        ({"retry": "none"}, False),
        ({"replicas": 2}, True),
        ({"deadline_s": 3}, True),
        ({"rate_limit": {"requests_per_s": 1}}, True),
        ({"autoscaling": {"max_replicas": 2}}, True),
        ({"failures": [{"replica": 0, "at_s": 1}]}, True),
    ],
)
def test_target_is_a_fleet_when_something_stands_in_front_or_changes(values: dict[str, Any], is_fleet: bool) -> None:
    assert SimulatedTarget.model_validate({"kind": "simulated", "gpu": "h100", **values}).is_fleet is is_fleet


def test_target_of_every_feature_round_trips_through_plain_data() -> None:
    target = SimulatedTarget.model_validate(
        {
            "kind": "simulated",
            "gpu": "a100-80g-sxm",
            "pools": [
                {"name": "p", "role": "prefill", "autoscaling": {"max_replicas": 3}},
                {"name": "d", "role": "decode", "replicas": 2},
            ],
            "link": {"bandwidth_gb_per_s": 25, "latency_us": 5},
            "failures": [{"replica": "d-1", "at_s": "1 min", "restart_after_s": "30s"}, {"replica": 0, "at_s": 0}],
            "rate_limit": {"requests_per_s": 2, "per": "class"},
            "deadline_s": "5s",
            "retry": "unstarted",
        }
    )

    assert SimulatedTarget.model_validate(target.model_dump()) == target
    assert SimulatedTarget.model_validate(target.model_dump(mode="json")) == target
    assert target.failures[0].at_s == 60.0
