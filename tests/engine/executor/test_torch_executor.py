from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, OutOfMemory
from engine.executor.base import Executor
from engine.executor.torch_executor import TorchExecutor
from engine.models.builtin import BUILTIN_SPECS
from engine.models.checkpoint import save_model
from engine.models.weights import SeededSource
from engine.outputs import BlockCopy, SchedulerOutput
from engine.request import Request
from engine.resolve import resolve
from engine.sampling_params import SamplingParams

Generate = Callable[..., list[list[int]]]
Tokens = dict[str, list[list[int]]]
MakePlan = Callable[..., SchedulerOutput]

NUM_OUTPUT_TOKENS = 12
PROMPT_LENGTHS = (1, 7, 16, 33, 70)


def build(model: str = "tiny", **options: Any) -> TorchExecutor:
    defaults: dict[str, Any] = {"max_model_len": 256, "num_blocks": 300, "dtype": "float64", "threads": 1}
    config = EngineConfig.from_dict({"model": model, **defaults, **options})
    return TorchExecutor(resolve(config, BUILTIN_SPECS[model]))


def prompts(lengths: Sequence[int] = PROMPT_LENGTHS) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(512) for _ in range(length)] for length in lengths]


class Oracle:
    """Greedy continuation by transformers, the whole sequence computed anew for every token."""

    def __init__(self, directory: Path, model: str, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        save_model(BUILTIN_SPECS[model], SeededSource(BUILTIN_SPECS[model], seed=0), directory)
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)

    @torch.inference_mode()
    def continue_greedily(self, prompt: Sequence[int], num_tokens: int = NUM_OUTPUT_TOKENS) -> list[int]:
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self._model(torch.tensor([tokens])).logits[0, -1].argmax()))
        return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def oracle_tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    found = {}
    for model in ("tiny", "tiny-qwen2", "tiny-qwen3"):
        oracle = Oracle(tmp_path_factory.mktemp(model), model, torch.float64)
        found[model] = [oracle.continue_greedily(prompt) for prompt in prompts()]
    return found


@pytest.mark.parametrize(
    ("backend", "block_size", "chunk"),
    [("cpu", block_size, chunk) for block_size in (1, 8, 16, 32) for chunk in (1, 5, 32, 10_000)]
    + [("torch_reference", 1, 32), ("torch_reference", 8, 5), ("torch_reference", 16, 1), ("torch_reference", 32, 99)],
)
def test_greedy_float64_equals_transformers_token_for_token(
    generate: Generate, oracle_tokens: Tokens, block_size: int, chunk: int, backend: str
) -> None:
    executor = build(block_size=block_size, attention_backend=backend)

    actual = generate(
        executor,
        prompts(),
        num_output_tokens=NUM_OUTPUT_TOKENS,
        block_size=block_size,
        num_blocks=300,
        chunk=chunk,
        stagger=2,
    )

    assert actual == oracle_tokens["tiny"]


@pytest.mark.parametrize("model", ["tiny-qwen2", "tiny-qwen3"])
def test_greedy_other_families_equal_transformers(generate: Generate, oracle_tokens: Tokens, model: str) -> None:
    executor = build(model)

    actual = generate(
        executor, prompts(), num_output_tokens=NUM_OUTPUT_TOKENS, block_size=16, num_blocks=300, chunk=20, stagger=1
    )

    assert actual == oracle_tokens[model]


def test_greedy_float32_equals_float64(generate: Generate, oracle_tokens: Tokens) -> None:
    """The seeded model's best two logits lie far enough apart here for single precision."""
    executor = build(dtype="float32")

    actual = generate(
        executor, prompts(), num_output_tokens=NUM_OUTPUT_TOKENS, block_size=16, num_blocks=300, chunk=20, stagger=1
    )

    assert actual == oracle_tokens["tiny"]


def test_execute_bfloat16_model_runs_and_mostly_agrees(generate: Generate, oracle_tokens: Tokens) -> None:
    actual = generate(
        build(dtype="bfloat16"), prompts(), num_output_tokens=NUM_OUTPUT_TOKENS, block_size=16, num_blocks=300
    )

    pairs = zip(actual, oracle_tokens["tiny"], strict=True)
    # Sequences part for good after the first near-tie, so only first tokens are compared.
    assert sum(ours[0] == theirs[0] for ours, theirs in pairs) >= 4


def place(make_plan: MakePlan, executor: Executor, request: Request, blocks: Sequence[int]) -> int:
    """Prefill a request into the given blocks; returns the sampled token."""
    request.block_ids = list(blocks)
    output = executor.execute(make_plan([request], [request.num_tokens]))
    request.num_computed_tokens = request.num_tokens
    token = output.sampled_token_ids[request.request_id]
    request.all_token_ids.append(token)
    request.num_tokens += 1
    return token


def decode(make_plan: MakePlan, executor: Executor, request: Request, **plan: Any) -> int:
    return executor.execute(make_plan([request], [1], **plan)).sampled_token_ids[request.request_id]


def test_execute_copied_block_continues_as_the_original_does(make_plan: MakePlan) -> None:
    executor = build(block_size=16)
    original = Request("a", prompts()[3], SamplingParams())
    place(make_plan, executor, original, [5, 9, 2])
    expected = decode(make_plan, executor, original)

    fork = Request("b", original.all_token_ids, SamplingParams())
    fork.num_computed_tokens = original.num_computed_tokens
    fork.block_ids = [5, 9, 7]

    assert decode(make_plan, executor, fork, copies=[BlockCopy(source=2, destination=7, num_tokens=2)]) == expected


def test_execute_chained_copies_are_done_in_order(make_plan: MakePlan) -> None:
    executor = build(block_size=16)
    original = Request("a", prompts()[3], SamplingParams())
    place(make_plan, executor, original, [5, 9, 2])
    expected = decode(make_plan, executor, original)
    original.block_ids = [5, 9, 11]
    copies = [BlockCopy(source=2, destination=7, num_tokens=2), BlockCopy(source=7, destination=11, num_tokens=2)]

    assert decode(make_plan, executor, original, copies=copies) == expected


def test_execute_swapped_request_continues_in_other_blocks(make_plan: MakePlan) -> None:
    executor = build(block_size=16, preemption="swap", swap_space="10MiB")
    request = Request("a", prompts()[3], SamplingParams())
    place(make_plan, executor, request, [5, 9, 2])
    expected = decode(make_plan, executor, request)
    out = [BlockCopy(source=block, destination=host, num_tokens=16) for host, block in enumerate([5, 9, 2])]
    executor.execute(make_plan([], [], swap_out=out, preempted_request_ids=["a"]))
    place(make_plan, executor, Request("b", prompts()[4], SamplingParams()), [5, 9, 2, 3, 4])  # overwrites its blocks
    request.block_ids = [20, 21, 22]

    back = [BlockCopy(source=host, destination=block, num_tokens=16) for host, block in enumerate([20, 21, 22])]
    assert decode(make_plan, executor, request, swap_in=back) == expected


def test_execute_preempted_request_recomputed_in_other_blocks_gives_the_same_token(make_plan: MakePlan) -> None:
    executor = build(block_size=16)
    request = Request("a", prompts()[3], SamplingParams())
    place(make_plan, executor, request, [5, 9, 2])
    expected = decode(make_plan, executor, request)
    request.num_computed_tokens = 0
    request.block_ids = [30, 31, 32]

    output = executor.execute(make_plan([request], [request.num_tokens], preempted_request_ids=["a"]))

    assert output.sampled_token_ids["a"] == expected


def test_execute_token_still_in_flight_is_taken_from_the_last_step(make_plan: MakePlan) -> None:
    """Asynchronous scheduling plans a step before the previous one's token is known."""
    executor = build(block_size=16)
    request = Request("a", prompts()[3], SamplingParams())
    place(make_plan, executor, request, [5, 9, 2])
    expected = decode(make_plan, executor, request)
    request.all_token_ids.pop()

    assert decode(make_plan, executor, request) == expected


def test_execute_unfinished_chunk_samples_nothing(make_plan: MakePlan) -> None:
    executor = build(block_size=16)
    request = Request("a", prompts()[3], SamplingParams())
    request.block_ids = [5, 9, 2]

    assert executor.execute(make_plan([request], [20])).sampled_token_ids == {}


def test_execute_logprobs_only_where_asked(make_plan: MakePlan) -> None:
    executor = build(block_size=16)
    first, second = (Request(name, prompts()[1], SamplingParams(num_logprobs=n)) for name, n in (("a", 3), ("b", 0)))
    first.block_ids, second.block_ids = [1], [2]

    output = executor.execute(make_plan([first, second], [7, 7]))

    assert set(output.logprobs) == {"a"}
    values = list(output.logprobs["a"].values())
    assert len(values) == 3
    assert values == sorted(values, reverse=True)
    assert next(iter(output.logprobs["a"])) == output.sampled_token_ids["a"]


def test_execute_sampling_does_not_depend_on_the_rest_of_the_batch(generate: Generate) -> None:
    sampling = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=7)
    together, alone = (
        generate(
            build(), some, num_output_tokens=8, block_size=16, num_blocks=300, sampling=sampling, chunk=chunk, stagger=1
        )
        for some, chunk in ((prompts(), 9), (prompts()[:1], 1000))
    )

    assert together[0] == alone[0]


def test_execute_out_of_memory_is_translated(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = build()
    request = Request("a", [1], SamplingParams())
    request.block_ids = [1]

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr("engine.worker.model_runner.ModelRunner.compute_logits", fail)
    with pytest.raises(OutOfMemory, match=r"a step of 1 tokens: CUDA out of memory.*Lower gpu_memory_utilization"):
        executor.execute(make_plan([request], [1]))


def test_execute_after_close_is_refused(make_plan: MakePlan) -> None:
    executor = build()
    executor.close()
    executor.close()

    with pytest.raises(ConfigError, match="closed"):
        executor.execute(make_plan([], []))
