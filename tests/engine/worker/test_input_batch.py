from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.outputs import SchedulerOutput
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.worker.input_batch import InputBatchBuilder


def request(name: str, tokens: Sequence[int], *, computed: int, blocks: Sequence[int]) -> Request:
    made = Request(name, tokens, SamplingParams())
    made.num_computed_tokens, made.block_ids = computed, list(blocks)
    return made


def plan(requests: Sequence[Request], counts: Sequence[int], preempted: Sequence[str] = ()) -> SchedulerOutput:
    return SchedulerOutput(
        step_index=0,
        requests=requests,
        num_new_tokens=counts,
        num_computed_tokens=[each.num_computed_tokens for each in requests],
        unsampled={
            i
            for i, (each, count) in enumerate(zip(requests, counts, strict=True))
            if each.num_computed_tokens + count < each.num_tokens
        },
        num_scheduled_tokens=sum(counts),
        preempted_request_ids=preempted,
    )


def builder(max_num_seqs: int = 4) -> InputBatchBuilder:
    return InputBatchBuilder(block_size=4, max_model_len=16, max_num_seqs=max_num_seqs)


def test_build_mixed_step_puts_single_tokens_first() -> None:
    chunk = request("chunk", range(10, 20), computed=4, blocks=[7, 2])
    decode = request("decode", range(30, 36), computed=5, blocks=[3, 9])
    prompt = request("prompt", [50, 51], computed=0, blocks=[5])

    batch = builder().build(plan([chunk, decode, prompt], [4, 1, 2]))

    assert batch.token_ids.tolist() == [35, 14, 15, 16, 17, 50, 51]
    assert batch.positions.tolist() == [5, 4, 5, 6, 7, 0, 1]
    assert batch.attention.num_decodes == 1
    assert batch.attention.query_starts.tolist() == [0, 1, 5, 7]
    assert batch.attention.seq_lens.tolist() == [6, 8, 2]
    assert batch.attention.block_tables.tolist() == [[3, 9], [7, 2], [5, 0]]
    assert batch.attention.slot_mapping.tolist() == [37, 8, 9, 10, 11, 20, 21]
    assert [each.request_id for each in batch.sampling_requests] == ["decode", "prompt"]
    assert batch.sampling_rows.tolist() == [0, 6]
    assert batch.sampling_positions.tolist() == [6, 2]


def test_build_decodes_only_keeps_order_and_types() -> None:
    requests = [request(f"r{i}", [i, i + 1], computed=1, blocks=[i + 1]) for i in range(3)]

    batch = builder().build(plan(requests, [1, 1, 1]))

    assert [each.request_id for each in batch.sampling_requests] == ["r0", "r1", "r2"]
    assert batch.sampling_rows.tolist() == [0, 1, 2]
    assert batch.token_ids.dtype == batch.positions.dtype == batch.attention.slot_mapping.dtype == np.int64
    assert batch.attention.block_tables.dtype == batch.attention.seq_lens.dtype == np.int32


def test_build_next_step_sees_new_and_replaced_last_blocks() -> None:
    one = request("a", range(7), computed=0, blocks=[4, 6])
    batches = builder()
    batches.build(plan([one], [7]))
    one.num_computed_tokens, one.num_tokens = 7, 8
    one.all_token_ids.append(99)
    one.block_ids = [4, 8]  # copy on write replaced the block that is written next

    assert batches.build(plan([one], [1])).attention.block_tables.tolist() == [[4, 8]]


def test_build_after_preemption_reads_the_whole_table_again() -> None:
    one = request("a", range(9), computed=0, blocks=[4, 6, 1])
    batches = builder()
    batches.build(plan([one], [8]))
    one.block_ids, one.num_computed_tokens = [2, 3, 5], 8
    batches.forget(["a"])

    assert batches.build(plan([one], [1])).attention.block_tables.tolist() == [[2, 3, 5]]


def test_build_more_requests_than_rows_grows() -> None:
    requests = [request(f"r{i}", [i], computed=0, blocks=[i + 1]) for i in range(5)]

    batch = builder(max_num_seqs=2).build(plan(requests, [1] * 5))

    assert batch.attention.block_tables.tolist() == [[1], [2], [3], [4], [5]]
