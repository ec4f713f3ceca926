"""Scenarios in a few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workbench.scenario import parse_scenario
from workbench.workload import ModelLimits, Workload, generate_workload

SHORT = "{name: short, weight: 3, input_tokens: {kind: lognormal, median: 60, sigma: 0.6}, output_tokens: 8}"
LONG = "{name: long, weight: 1, input_tokens: {kind: uniform, low: 500, high: 900}, output_tokens: 24}"


@pytest.fixture
def make_workload() -> Callable[..., Workload]:
    def make(
        *,
        arrivals: str = "{kind: poisson, rate: 4}",
        classes: str = f"[{SHORT}, {LONG}]",
        num_requests: int | None = 100,
        seed: int = 1,
        max_model_len: int | None = 2048,
        **keys: Any,
    ) -> Workload:
        lines = [f"  {key}: {value}" for key, value in keys.items()]
        if num_requests is not None:
            lines.append(f"  num_requests: {num_requests}")
        text = f"name: t\nseed: {seed}\nworkload:\n  arrivals: {arrivals}\n  classes: {classes}\n" + "\n".join(lines)
        return generate_workload(parse_scenario(text), ModelLimits(max_model_len=max_model_len, vocab_size=512))

    return make
