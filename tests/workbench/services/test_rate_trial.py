"""Probes of one target at one rate after another."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from workbench.scenario import parse_scenario
from workbench.services.rate_trial import RateProber
from workbench.services.targets import RunnableTarget
from workbench.workload.records import ModelLimits, Workload

TEXT = """
name: probes
model: tiny
workload:
  num_requests: 5
  arrivals: {kind: poisson, rate: 4}
  classes: [{name: a, input_tokens: 20, output_tokens: 4}]
slo: {ttft: 1s}
"""


class Noting:
    """Keeps the requests that it is given and runs none."""

    limits = ModelLimits(max_model_len=512, vocab_size=1000)

    def __init__(self) -> None:
        self.seen: list[Workload] = []

    def run(self, workload: Workload, **options: Any) -> None:
        self.seen.append(workload)
        raise InterruptedError


def probed(target: str) -> tuple[Workload, Workload]:
    noting = Noting()
    scenario = parse_scenario(f"{TEXT}\ntarget: {target}\n")
    prober = RateProber(target=cast(RunnableTarget, noting), scenario=scenario, params={}, seed=1)
    for rate_per_s in (2.0, 4.0):
        with pytest.raises(InterruptedError):
            prober.probe(rate_per_s, 1, 0)
    first, second = noting.seen
    return first, second


def prompts(workload: Workload) -> list[list[int]]:
    return [workload.prompt_token_ids(row).tolist() for row in range(len(workload))]


def test_probes_offer_the_same_requests_faster_or_slower() -> None:
    first, second = probed("{kind: simulated, gpu: a100-80g-sxm}")
    assert np.allclose(first.arrival_s, 2 * second.arrival_s)
    assert prompts(first) == prompts(second)


def test_probes_of_a_server_have_prompts_of_their_own_as_its_cache_outlives_them() -> None:
    first, second = probed("{kind: endpoint, url: 'http://127.0.0.1:9'}")
    assert np.allclose(first.arrival_s, 2 * second.arrival_s)
    assert first.max_output_tokens.tolist() == second.max_output_tokens.tolist()
    assert not any(one == other for one, other in zip(prompts(first), prompts(second), strict=True))
