"""Beam search over shared blocks against a search that computes every sequence from scratch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.errors import ConfigError, RequestRefused
from engine.executor.torch_executor import TorchExecutor
from engine.llm import LLM
from engine.outputs import SchedulerOutput
from engine.request import Request
from engine.sampling_params import SamplingParams


def make_llm(**options: Any) -> LLM:
    defaults: dict[str, Any] = {"dtype": "float64", "max_model_len": 128, "num_blocks": 400, "block_size": 4}
    return LLM("tiny", **(defaults | options))


def log_probabilities(executor: TorchExecutor, tokens: list[int], count: int) -> dict[int, float]:
    """Of the token after `tokens`, computed from scratch in blocks of their own."""
    request = Request("scratch", tokens, SamplingParams(num_logprobs=count))
    request.block_ids = list(range(1, -(-len(tokens) // 4) + 1))
    plan = SchedulerOutput(
        step_index=0,
        requests=[request],
        num_new_tokens=[len(tokens)],
        num_computed_tokens=[0],
        unsampled=set(),
        num_scheduled_tokens=len(tokens),
        finished_request_ids=["scratch"],
    )
    return dict(executor.execute(plan).logprobs["scratch"])


def naive_beams(llm: LLM, prompt: list[int], width: int, max_tokens: int) -> list[tuple[tuple[int, ...], float]]:
    """The `width` best of each step, every sequence recomputed; no end-of-sequence."""
    assert isinstance(llm.core.executor, TorchExecutor)
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(max_tokens):
        candidates = [
            ((*tokens, token), score + logprob)
            for tokens, score in beams
            for token, logprob in log_probabilities(llm.core.executor, [*prompt, *tokens], 2 * width).items()
        ]
        beams = sorted(candidates, key=lambda c: -c[1])[:width]
    return beams


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("length", [3, 8, 17])
def test_beam_search_equals_a_search_from_scratch(width: int, length: int) -> None:
    rng = random.Random(length)
    prompt = [rng.randrange(256) for _ in range(length)]
    llm = make_llm()
    found = llm.beam_search(prompt, width=width, max_tokens=7)[0]
    expected = naive_beams(make_llm(), prompt, width, 7)
    assert [c.token_ids for c in found.completions] == [tokens for tokens, _ in expected]
    llm.core.scheduler.check_integrity()
    assert llm.core.scheduler.blocks.pool.num_in_use == 0
    assert not llm.core.has_unfinished()


def test_beam_search_is_the_same_with_a_small_budget_and_other_requests_around() -> None:
    rng = random.Random(1)
    prompt = [rng.randrange(256) for _ in range(13)]
    alone = make_llm().beam_search(prompt, width=3, max_tokens=8)[0]
    llm = make_llm(max_num_seqs=4, max_num_batched_tokens=4, enable_prefix_caching=False)
    for i in range(6):
        other = Request(f"other-{i}", [rng.randrange(256) for _ in range(9)], SamplingParams(max_tokens=6))
        llm.core.add_request(other)
    assert llm.beam_search(prompt, width=3, max_tokens=8)[0].completions == alone.completions


def test_beam_search_keeps_ended_hypotheses_without_their_end() -> None:
    llm = make_llm()
    prompt = [5, 9, 77]
    best = llm.beam_search(prompt, width=2, max_tokens=5)[0].completions[0].token_ids
    # Make the second token of the best beam the end: the one-token hypothesis must be among the results.
    llm.tokenizer = _WithEnd(llm.tokenizer, best[1])  # type: ignore[assignment]
    found = llm.beam_search(prompt, width=2, max_tokens=5, length_penalty=0.0)[0].completions
    assert any(c.token_ids == best[:1] and c.finish_reason == "stop" for c in found)


class _WithEnd:
    def __init__(self, tokenizer: Any, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_beam_search_that_cannot_fit_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(RequestRefused, match="max_num_seqs"):
        make_llm(max_num_seqs=2).beam_search([1, 2], width=3)
    with pytest.raises(RequestRefused, match="8 beams of 34 tokens need 72 blocks of 4, but the pool has 39"):
        make_llm(num_blocks=40).beam_search([1, 2], width=8, max_tokens=32)
    with pytest.raises(ConfigError, match="async_scheduling"):
        make_llm(async_scheduling=True).beam_search([1, 2], width=2)


def test_beam_search_after_an_out_of_place_end_frees_everything() -> None:
    llm = make_llm()
    beam = llm.core.beam_search.start(Request("r", [1, 2, 3], SamplingParams(max_tokens=20)), width=3)
    llm.core.add_request(beam)
    for _ in range(5):
        llm.core.step()
    llm.core.abort("r")
    llm.core.scheduler.check_integrity()
    assert llm.core.scheduler.blocks.pool.num_in_use == 0


def test_logprobs_are_float64_for_a_float64_model() -> None:
    llm = make_llm()
    assert isinstance(llm.core.executor, TorchExecutor)
    values = log_probabilities(llm.core.executor, [1, 2, 3], 5).values()
    assert any(float(torch.tensor(v, dtype=torch.float32)) != v for v in values)
