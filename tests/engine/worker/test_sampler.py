from __future__ import annotations

from collections import Counter

import pytest
import torch

from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.worker.sampler import Sampler, top_logprobs, uniform

LOGITS = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3]))


def draw(sampling: SamplingParams, *, count: int = 1000, logits: torch.Tensor = LOGITS) -> Counter[int]:
    """Tokens that one request draws at `count` positions."""
    request, sampler = Request("r", [0], sampling), Sampler(seed=0)
    return Counter(sampler.sample(logits[None], [request], [position])[0] for position in range(count))


def test_sample_greedy_tie_takes_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    requests = [Request(name, [0], SamplingParams()) for name in "ab"]

    assert Sampler(seed=0).sample(logits, requests, [1, 1]) == [1, 0]


def test_sample_temperature_one_follows_the_distribution() -> None:
    counts = draw(SamplingParams(temperature=1.0), count=4000)

    for token, probability in enumerate((0.1, 0.4, 0.2, 0.3)):
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.03)  # four standard errors


def test_sample_temperature_two_flattens() -> None:
    roots = LOGITS.exp().sqrt()
    expected = (roots / roots.sum()).tolist()

    counts = draw(SamplingParams(temperature=2.0), count=4000)

    assert [counts[token] / 4000 for token in range(4)] == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (SamplingParams(temperature=1.0, top_k=2), {1, 3}),
        (SamplingParams(temperature=1.0, top_p=0.4), {1}),
        (SamplingParams(temperature=1.0, top_p=0.41), {1, 3}),
        (SamplingParams(temperature=1.0, top_p=0.5, top_k=3), {1, 3}),
        (SamplingParams(temperature=1.0, top_k=99), {0, 1, 2, 3}),
    ],
)
def test_sample_filters_keep_the_smallest_sufficient_set(sampling: SamplingParams, kept: set[int]) -> None:
    assert set(draw(sampling, count=300)) == kept


def test_sample_impossible_tokens_are_never_drawn() -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.0])

    assert set(draw(SamplingParams(temperature=1.0), logits=logits)) == {1, 3}


def test_sample_own_seed_repeats_under_any_request_id() -> None:
    logits = torch.zeros(1, 1000)
    tokens = {
        Sampler(seed=engine_seed).sample(logits, [Request(name, [0], SamplingParams(temperature=1.0, seed=5))], [9])[0]
        for engine_seed in (0, 1)
        for name in "ab"
    }

    assert len(tokens) == 1


def test_sample_unseeded_differs_between_requests_and_engines() -> None:
    logits = torch.zeros(1, 100_000)
    tokens = {
        Sampler(seed=engine_seed).sample(logits, [Request(name, [0], SamplingParams(temperature=1.0))], [9])[0]
        for engine_seed in (0, 1)
        for name in "ab"
    }

    assert len(tokens) == 4


def test_uniform_is_the_same_on_every_machine() -> None:
    assert uniform("7", 3) == 0.7133945216688186
    assert uniform("7", 3) != uniform("7", 4)


def test_top_logprobs_are_sorted_and_normalised() -> None:
    found = top_logprobs(LOGITS, 2)

    assert list(found) == [1, 3]
    assert found[1] == pytest.approx(-0.916291, abs=1e-5)
