from __future__ import annotations

from dataclasses import replace

import numpy as np

from workbench.metrics.binding import binding_of
from workbench.metrics.records import RequestTable, RunRecord, StepTable


def make_record(stops: list[str], *, scheduled: list[int] | None = None) -> RunRecord:
    count = len(stops)
    zeros = np.zeros(count, dtype=np.int64)
    empty, none = np.zeros(0), np.zeros(0, dtype=np.int64)
    steps = StepTable(
        start_s=np.arange(count, dtype=float),
        end_s=np.arange(count, dtype=float) + 1,
        num_running=zeros + 3,
        num_waiting=zeros,
        num_scheduled_requests=zeros + 1 if scheduled is None else np.array(scheduled),
        num_scheduled_tokens=zeros + 1,
        num_prefill_tokens=zeros,
        num_blocks_in_use=zeros,
        num_free_blocks=zeros,
        num_preempted=zeros,
        num_recomputed_tokens=zeros + 2,
        num_kv_tokens=zeros,
        admission_stop=tuple(stops),
    )
    requests = RequestTable(
        request_ids=(),
        class_names=(),
        class_index=none,
        arrival_s=empty,
        sent_s=empty,
        first_scheduled_s=empty,
        num_prompt_tokens=none,
        num_output_tokens=none,
        num_cached_tokens=none,
        num_preemptions=none,
        outcome=none,
        token_times_s=empty,
        token_offsets=np.zeros(1, dtype=np.int64),
        num_events=none,
    )
    return RunRecord(requests=requests, steps=steps, duration_s=1.0, clock="virtual", engine={})


def test_binding_names_the_cause_its_share_and_what_is_not_the_limit() -> None:
    binding = binding_of(make_record(["kv_blocks"] * 71 + ["no_waiting"] * 29))
    assert binding is not None
    assert binding.shares == {"kv_blocks": 0.71, "no_waiting": 0.29}
    assert binding.recomputed_tokens == 200
    assert binding.verdict.startswith("KV blocks bound 71% of busy steps: raise gpu_memory_utilization")
    assert "max_num_seqs and max_num_batched_tokens are not the limit" in binding.verdict


def test_binding_of_an_idle_engine_says_that_nothing_bound() -> None:
    binding = binding_of(make_record(["no_waiting"] * 10))
    assert binding is not None
    assert binding.cause is None
    assert "did not bind" in binding.verdict


def test_binding_counts_busy_steps_only() -> None:
    binding = binding_of(make_record(["kv_blocks", "sequence_cap"], scheduled=[0, 1]))
    assert binding is not None
    assert binding.shares == {"sequence_cap": 1.0}


def test_binding_without_steps_is_absent() -> None:
    record = make_record(["kv_blocks"])
    assert binding_of(replace(record, steps=make_record([]).steps)) is None
