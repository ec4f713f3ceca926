"""The smallest scheduler that exercises an executor: chunked prefill, shuffled blocks, no preemption."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from engine.executor.base import Executor
from engine.outputs import BlockCopy, SchedulerOutput
from engine.request import Request
from engine.sampling_params import SamplingParams


def _generate(
    executor: Executor,
    prompts: Sequence[Sequence[int]],
    *,
    num_output_tokens: int,
    block_size: int,
    num_blocks: int,
    chunk: int = 10**9,
    sampling: SamplingParams | None = None,
    stagger: int = 0,
) -> list[list[int]]:
    """Output tokens of each prompt; all run together, each prompt in chunks of at most `chunk` tokens.

    Request i starts `i * stagger` steps after the first, so that prefills and decodes mix.
    """
    free = list(range(1, num_blocks))
    random.Random(0).shuffle(free)  # physical order must not matter
    requests = [
        Request(f"r{i}", prompt, sampling or SamplingParams(max_tokens=num_output_tokens))
        for i, prompt in enumerate(prompts)
    ]
    step = 0
    finished: list[str] = []
    while waiting := [request for request in requests if request.num_output_tokens < num_output_tokens]:
        scheduled = [request for request in waiting if step >= int(request.request_id[1:]) * stagger]
        counts = [min(chunk, request.num_tokens - request.num_computed_tokens) for request in scheduled]
        for request, count in zip(scheduled, counts, strict=True):
            while len(request.block_ids) * block_size < request.num_computed_tokens + count:
                request.block_ids.append(free.pop())
        plan = _make_plan(scheduled, counts, step_index=step, finished_request_ids=finished)
        output = executor.execute(plan)
        finished = []
        for request, count in zip(scheduled, counts, strict=True):
            request.num_computed_tokens += count
            if request.num_computed_tokens == request.num_tokens:
                request.all_token_ids.append(output.sampled_token_ids[request.request_id])
                request.num_tokens += 1
            if request.num_output_tokens == num_output_tokens:
                finished.append(request.request_id)
        step += 1
    return [request.output_token_ids for request in requests]


def _make_plan(
    requests: Sequence[Request],
    counts: Sequence[int],
    *,
    step_index: int = 0,
    finished_request_ids: Sequence[str] = (),
    preempted_request_ids: Sequence[str] = (),
    copies: Sequence[BlockCopy] = (),
    swap_out: Sequence[BlockCopy] = (),
    swap_in: Sequence[BlockCopy] = (),
) -> SchedulerOutput:
    """The plan that computes `counts[i]` tokens of `requests[i]`, whose blocks are allocated already."""
    return SchedulerOutput(
        step_index=step_index,
        requests=requests,
        num_new_tokens=counts,
        num_computed_tokens=[request.num_computed_tokens for request in requests],
        unsampled={
            i
            for i, (request, count) in enumerate(zip(requests, counts, strict=True))
            if request.num_computed_tokens + count < request.num_tokens
        },
        num_scheduled_tokens=sum(counts),
        finished_request_ids=finished_request_ids,
        preempted_request_ids=preempted_request_ids,
        copies=copies,
        swap_out=swap_out,
        swap_in=swap_in,
    )


@pytest.fixture(scope="session")
def generate() -> Callable[..., list[list[int]]]:
    """See `_generate`."""
    return _generate


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., SchedulerOutput]:
    """See `_make_plan`."""
    return _make_plan
