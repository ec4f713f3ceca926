"""The driver against a core whose times can be added up by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.clock import VirtualClock, WallClock
from workbench.loadgen import Progress, RunFailed, drive
from workbench.metrics.records import Outcome
from workbench.workload.records import ClosedLoopPacing

from .conftest import FakeCore, workload_of


def test_drive_request_due_during_a_step_is_handed_over_at_its_arrival(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core(step_s=1.0)
    # Two tokens each: request 0 runs in steps [0, 1] and [1, 2]; request 1 arrives inside the first step.
    record = drive(core, make_workload([0.0, 0.5, 10.0]), clock)
    table = record.requests
    assert table.token_times_s.tolist() == [1.0, 2.0, 2.0, 3.0, 11.0, 12.0]
    assert table.token_offsets.tolist() == [0, 2, 4, 6]
    assert table.sent_s.tolist() == [0.0, 0.5, 10.0]
    assert table.first_scheduled_s.tolist() == [0.0, 1.0, 10.0]
    assert table.outcome.tolist() == [Outcome.COMPLETED] * 3
    assert record.duration_s == 12.0
    assert record.clock == "virtual"
    assert core.added == [("chat-0", 100.0), ("chat-1", 100.5), ("chat-2", 110.0)]


def test_drive_late_first_arrival_duration_starts_there(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core(step_s=1.0)
    record = drive(core, make_workload([3.0], output_tokens=1), clock)
    assert record.duration_s == 1.0
    assert record.steps.start_s.tolist() == [3.0]


def test_drive_concurrency_cap_holds_back_and_counts_from_intended_arrival(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core(step_s=0.5)
    # Service 0.5 s, cap 1: the third request arrives at 0.2, waits for two others, and ends at 1.5.
    record = drive(core, make_workload([0.0, 0.1, 0.2], output_tokens=1, max_concurrency=1), clock)
    table = record.requests
    assert table.sent_s.tolist() == [0.0, 0.5, 1.0]
    assert table.token_times_s.tolist() == [0.5, 1.0, 1.5]
    assert (table.token_times_s - table.arrival_s).tolist() == [0.5, 0.9, 1.3]


def test_drive_cap_with_free_slots_hands_over_at_arrival_until_full(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core(step_s=1.0)
    record = drive(core, make_workload([0.0, 0.25, 0.5], output_tokens=2, max_concurrency=2), clock)
    # One slot was free during the first step: request 1 took it at 0.25; request 2 got request 0's slot at 2.0.
    assert record.requests.sent_s.tolist() == [0.0, 0.25, 2.0]


def test_drive_closed_loop_next_request_follows_completion_and_thinking(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core(step_s=1.0)
    pacing = ClosedLoopPacing(concurrency=2, think_time_s=0.5)
    record = drive(core, make_workload([0.0] * 5, output_tokens=1, closed_loop=pacing), clock)
    assert record.requests.arrival_s.tolist() == [0.0, 0.0, 1.5, 1.5, 3.0]
    assert record.requests.sent_s.tolist() == [0.0, 0.0, 1.5, 1.5, 3.0]
    assert record.requests.token_times_s.tolist() == [1.0, 1.0, 2.5, 2.5, 4.0]


def test_drive_closed_loop_with_more_users_than_requests_ends(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core()
    pacing = ClosedLoopPacing(concurrency=10, think_time_s=0.0)
    record = drive(core, make_workload([0.0] * 3, closed_loop=pacing), clock)
    assert record.requests.outcome.tolist() == [Outcome.COMPLETED] * 3


def test_drive_refused_request_is_rejected_and_others_go_on(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core()
    core.refuses = {"chat-1"}
    record = drive(core, make_workload([0.0, 0.0, 0.0]), clock)
    assert record.requests.outcome.tolist() == [Outcome.COMPLETED, Outcome.REJECTED, Outcome.COMPLETED]
    assert record.requests.errors == {1: "prompt too long"}
    assert np.isnan(record.requests.first_scheduled_s[1])


def test_drive_closed_loop_all_refused_ends(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core()
    core.refuses = {f"chat-{index}" for index in range(4)}
    pacing = ClosedLoopPacing(concurrency=1, think_time_s=0.0)
    record = drive(core, make_workload([0.0] * 4, closed_loop=pacing), clock)
    assert record.requests.outcome.tolist() == [Outcome.REJECTED] * 4


def test_drive_exception_in_step_raises_run_failed_with_what_was_seen(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core()
    core.breaks_at_step = 3
    with pytest.raises(RunFailed, match="after 3 steps: MemoryError: no more") as failure:
        drive(core, make_workload([0.0, 2.5], output_tokens=2), clock)
    assert isinstance(failure.value.__cause__, MemoryError)
    table = failure.value.record.requests
    assert table.outcome.tolist() == [Outcome.COMPLETED, Outcome.UNFINISHED]
    assert len(failure.value.record.steps) == 3


def test_drive_deadline_leaves_open_requests_unfinished_and_later_ones_unissued(
    make_core: Any, make_workload: Any
) -> None:
    core, clock = make_core(step_s=1.0)
    workload = make_workload([0.0, 1.0, 2.5, 50.0], output_tokens=4, max_concurrency=2)
    record = drive(core, workload, clock, deadline_s=3.0)
    assert record.requests.request_ids == ("chat-0", "chat-1", "chat-2")
    assert record.requests.outcome.tolist() == [Outcome.UNFINISHED] * 3
    assert np.isnan(record.requests.sent_s[2])
    assert record.duration_s == 3.0
    assert core.aborted == ["chat-0", "chat-1"]


def test_drive_idle_until_deadline_does_not_wait_for_later_arrivals(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core()
    record = drive(core, make_workload([0.0, 1000.0], output_tokens=1), clock, deadline_s=5.0)
    assert len(record.requests) == 1
    assert clock.now() == 105.0


def test_drive_start_that_rounds_still_ends(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core(start_s=1e9 / 3)
    arrivals = [index / 7 + 0.1 for index in range(50)]
    record = drive(core, make_workload(arrivals, output_tokens=1), clock)
    assert len(record.requests) == 50
    assert (record.requests.sent_s >= record.requests.arrival_s).all()


def test_drive_second_run_on_one_core_has_only_its_own_steps(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core()
    drive(core, make_workload([0.0]), clock)
    record = drive(core, make_workload([0.0], output_tokens=3), clock)
    assert record.steps.start_s.tolist() == [0.0, 1.0, 2.0]


def test_drive_progress_ends_with_everything_done(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core()
    seen: list[Progress] = []
    drive(core, make_workload([0.0, 1.0], output_tokens=40), clock, on_progress=seen.append)
    assert seen[-1].num_ended == 2
    assert seen[-1].num_output_tokens == 80
    assert len(seen) == 2


def test_drive_error_in_progress_callback_is_not_blamed_on_the_engine(make_core: Any, make_workload: Any) -> None:
    core, clock = make_core()

    def stop(progress: Progress) -> None:
        raise KeyError("pruned")

    with pytest.raises(KeyError, match="pruned"):
        drive(core, make_workload([0.0]), clock, on_progress=stop)


def test_drive_wall_clock_gives_the_same_rows(make_core: Any, make_workload: Any) -> None:
    core, _ = make_core(step_s=0.0)
    clock = WallClock()
    record = drive(core, make_workload([0.0, 0.002, 0.004]), clock)
    assert record.clock == "wall"
    assert record.requests.num_output_tokens.tolist() == [2, 2, 2]
    assert (record.requests.sent_s >= record.requests.arrival_s).all()


@settings(max_examples=100, deadline=None)
@given(
    arrivals=st.lists(st.floats(0, 20), min_size=1, max_size=30).map(sorted),
    output_tokens=st.integers(1, 5),
    cap=st.none() | st.integers(1, 4),
    users=st.none() | st.integers(1, 5),
    step_s=st.sampled_from([0.1, 1.0]),
    slots=st.integers(1, 8),
    deadline_s=st.none() | st.floats(0.1, 30),
)
def test_drive_any_load_every_request_is_accounted_for(
    arrivals: list[float],
    output_tokens: int,
    cap: int | None,
    users: int | None,
    step_s: float,
    slots: int,
    deadline_s: float | None,
) -> None:
    clock = VirtualClock(17.3)
    core = FakeCore(clock, step_s=step_s, max_num_seqs=slots)
    pacing = None if users is None else ClosedLoopPacing(concurrency=users, think_time_s=0.3)
    workload = workload_of(arrivals, output_tokens=output_tokens, closed_loop=pacing, max_concurrency=cap)
    table = drive(core, workload, clock, deadline_s=deadline_s).requests
    completed = table.outcome == Outcome.COMPLETED
    assert deadline_s is not None or completed.all()
    assert deadline_s is not None or len(table) == len(arrivals)
    assert set(table.outcome.tolist()) <= {Outcome.COMPLETED, Outcome.UNFINISHED}
    assert (table.num_output_tokens[completed] == output_tokens).all()
    assert (np.diff(table.arrival_s) >= 0).all()
    sent = table.sent_s[completed]
    assert (sent >= table.arrival_s[completed]).all()
    assert (table.first_scheduled_s[completed] >= sent - 1e-9).all()
    firsts = table.token_times_s[table.token_offsets[:-1][completed]]
    assert firsts == pytest.approx(table.first_scheduled_s[completed] + step_s)
    changes = sorted(
        [(time, 1) for time in sent]
        + [(table.token_times_s[end - 1], -1) for end in table.token_offsets[1:][completed]]
    )
    assert deadline_s is not None or max(np.cumsum([change for _, change in changes])) <= min(cap or 99, users or 99)
