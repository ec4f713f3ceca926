"""What holds of every fleet, whatever stands in front of it and happens to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.loadgen.fleet.loop import FleetRun
from workbench.loadgen.fleet.record import record_of
from workbench.loadgen.fleet.target import FleetTarget
from workbench.loadgen.simulated import SimulatedTarget
from workbench.metrics.records import Outcome, RunRecord
from workbench.metrics.selfchecks import find_violations
from workbench.scenario.target import SimulatedTarget as FleetSpec
from workbench.services.targets import build_target
from workbench.workload import generate_workload

from .conftest import RunFleet, fleet_scenario

_ROUTINGS = ("random", "round_robin", "least_loaded", "least_kv", "prefix_hash")
_SCALINGS = st.fixed_dictionaries(
    {
        "max_replicas": st.integers(3, 5),
        "waiting_per_replica": st.sampled_from([1, 4]),
        "start_up_s": st.sampled_from([0, 0.7]),
        "interval_s": st.sampled_from([0.2, 1.0]),
        "scale_down_after_s": st.sampled_from([0, 1.5]),
    }
)


def _failures(num_places: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.fixed_dictionaries(
        {
            "replica": st.integers(0, num_places - 1),
            "at_s": st.floats(0.0, 4.0),
            "restart_after_s": st.sampled_from([None, 0.001, 1.0]),
        }
    )
    return st.lists(one, max_size=3)


@st.composite
def _targets(draw: st.DrawFn) -> dict[str, Any]:
    target: dict[str, Any] = {"routing": draw(st.sampled_from(_ROUTINGS))}
    shape = draw(st.sampled_from(["replicas", "scaled", "by_length", "by_role"]))
    if shape == "replicas":
        target["replicas"], num_places = draw(st.integers(1, 3)), 1
    elif shape == "scaled":
        target["autoscaling"], num_places = draw(_SCALINGS), 3
    elif shape == "by_length":
        long = {"name": "long"} | ({"autoscaling": draw(_SCALINGS)} if draw(st.booleans()) else {})
        target["pools"], num_places = [{"name": "short", "max_input_tokens": 300, "replicas": 2}, long], 3
    else:
        target["pools"] = [{"name": "p", "role": "prefill", "replicas": draw(st.integers(1, 2))}]
        target["pools"].append({"name": "d", "role": "decode", "replicas": draw(st.integers(1, 2))})
        target["link"], num_places = {"bandwidth_gb_per_s": draw(st.sampled_from([0.05, 1, 100]))}, 2
    target["failures"] = draw(_failures(num_places))
    target["retry"] = draw(st.sampled_from(["all", "unstarted", "none"]))
    target["queue_limit"] = draw(st.sampled_from([None, 0, 4]))
    target["deadline_s"] = draw(st.sampled_from([None, 0.05, 1.0]))
    if draw(st.booleans()):
        target["rate_limit"] = {"requests_per_s": draw(st.sampled_from([0.5, 5])), "burst": 1, "clients": 4}
    return target


_WORKLOADS = st.fixed_dictionaries(
    {
        "arrivals": st.sampled_from(
            [
                {"kind": "poisson", "rate": 15},
                {"kind": "all_at_once"},
                {"kind": "closed_loop", "concurrency": 5},
                {"kind": "closed_loop", "concurrency": 5, "think_time": "200ms"},
            ]
        ),
        "max_concurrency": st.sampled_from([None, 6]),
        "classes": st.sampled_from(
            [
                [
                    {"name": "short", "count": 30, "input_tokens": 200, "output_tokens": 40, "priority": 1},
                    {"name": "long", "count": 10, "input_tokens": 2000, "output_tokens": 20, "priority": 0},
                ],
                [{"name": "one", "count": 20, "input_tokens": 64, "output_tokens": 1}],
            ]
        ),
    }
)
_ENGINES = st.sampled_from(
    [{}, {"num_blocks": 300, "scheduling_policy": "priority"}, {"async_scheduling": False, "num_blocks": 300}]
)


def _run(workload: dict[str, Any], engine: dict[str, Any], target: dict[str, Any]) -> tuple[FleetRun, RunRecord]:
    scenario = fleet_scenario(workload, engine, **target)
    spec, built = scenario.target, build_target(scenario, {})
    instance = built.instance if isinstance(built, FleetTarget) else built
    assert isinstance(instance, SimulatedTarget)
    assert isinstance(spec, FleetSpec)
    run = FleetRun(instance, spec, generate_workload(scenario, built.limits), scenario.seed)
    run.to_end(None, None, None)
    return run, record_of(run, {})


def _columns(record: RunRecord) -> list[Any]:
    table, steps = record.requests, record.steps
    return [
        table.request_ids,
        *(getattr(table, name).tobytes() for name in ("token_times_s", "outcome", "first_scheduled_s", "sent_s")),
        *(getattr(steps, name).tobytes() for name in ("start_s", "end_s", "num_blocks_in_use")),
        record.fleet,
        record.decision_fingerprint,
    ]


@settings(max_examples=60, deadline=None)
@given(workload=_WORKLOADS, engine=_ENGINES, target=_targets())
def test_fleet_of_any_kind_ends_every_request_once_and_keeps_its_books(
    workload: dict[str, Any], engine: dict[str, Any], target: dict[str, Any]
) -> None:
    run, record = _run(workload, engine, target)

    table, fleet = record.requests, record.fleet
    assert fleet is not None
    # Every request was issued once and ended once; what completed has all its tokens, in order.
    assert sorted(table.request_ids) == sorted(run.workload.request_ids)
    assert run.seen.num_ended == len(table)
    assert (table.outcome != Outcome.UNFINISHED).all()
    done = table.outcome == Outcome.COMPLETED
    wanted = dict(zip(run.workload.request_ids, run.workload.max_output_tokens.tolist(), strict=True))
    assert all(table.num_output_tokens[i] == wanted[table.request_ids[i]] for i in np.flatnonzero(done))
    assert not list(find_violations(record))
    # Who did not complete was turned away for a reason that is counted.
    assert sum(fleet["not_served"].values()) == (~done).sum()
    assert sum(each["num_output_tokens"] for each in fleet["replicas"]) == table.num_output_tokens.sum()
    # Engines that live hold nothing any more, and dead ones took no step after their failure.
    for engine_left in run.upkeep.engines():
        scheduler = engine_left.simulation.core.scheduler
        scheduler.check_integrity()
        assert scheduler.blocks.pool.num_in_use == 0
        assert engine_left.num_open == len(engine_left._open_until)
    most = len(run.upkeep.places)
    assert all(up >= 0 and up + starting <= most for _, up, starting in fleet["counts"])
    times = [when_s for when_s, _, _ in fleet["counts"]]
    assert times == sorted(times)
    if target["deadline_s"] is not None:
        waits = (table.first_scheduled_s - table.sent_s)[np.isfinite(table.first_scheduled_s)]
        assert (waits <= target["deadline_s"] + 1e-9).all()


@settings(max_examples=12, deadline=None)
@given(workload=_WORKLOADS, engine=_ENGINES, target=_targets())
def test_fleet_of_any_kind_repeats_itself_byte_for_byte(
    workload: dict[str, Any], engine: dict[str, Any], target: dict[str, Any]
) -> None:
    assert _columns(_run(workload, engine, target)[1]) == _columns(_run(workload, engine, target)[1])


@pytest.mark.parametrize(("concurrency", "output_tokens"), [(1, 1), (5, 2)])
def test_fleet_of_answers_of_a_token_or_two_keeps_littles_law(
    run_fleet: RunFleet, concurrency: int, output_tokens: int
) -> None:
    workload = {
        "arrivals": {"kind": "closed_loop", "concurrency": concurrency},
        "classes": [{"name": "c", "count": 90, "input_tokens": 1, "output_tokens": output_tokens}],
    }
    result = run_fleet(workload, queue_limit=100)
    assert list(find_violations(result.record)) == []


def test_fleet_with_a_step_of_which_no_request_knows_breaks_littles_law(run_fleet: RunFleet) -> None:
    record = run_fleet(queue_limit=100).record
    longer = replace(record.steps, num_running=record.steps.num_running * 2)
    assert [text[:12] for text in find_violations(replace(record, steps=longer))] == ["Little's law"]
