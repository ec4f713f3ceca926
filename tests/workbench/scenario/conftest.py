"""A small valid scenario to spoil."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workbench.scenario import ScenarioError, parse_scenario

GOOD = """\
name: demo
seed: 1
engine:
  max_num_seqs: 64
workload:
  num_requests: 10
  arrivals: {kind: poisson, rate: 4}
  classes:
    - name: short
      weight: 3
      input_tokens: {kind: lognormal, median: 60, sigma: 0.6, max: 400}
      output_tokens: {kind: uniform, low: 8, high: 48}
    - name: long
      input_tokens: {percentiles: {p50: 600, p90: 1200, p99: 1600}}
      output_tokens: 24
slo:
  ttft_p95: 500ms
  tpot: 25ms
search:
  space:
    block_size: {choices: [8, 16, 32]}
    max_num_seqs: {low: 4, high: 64, log: true}
"""


@pytest.fixture
def good_text() -> str:
    return GOOD


@pytest.fixture
def refusal() -> Callable[..., str]:
    """The message for the good scenario with some of its text replaced and some overrides set."""

    def refuse(*replacements: tuple[str, str], text: str = GOOD, overrides: tuple[str, ...] = ()) -> str:
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        with pytest.raises(ScenarioError) as caught:
            parse_scenario(text, source="s.yaml", overrides=overrides)
        message = str(caught.value)
        assert 1 <= len(message.splitlines()) <= 3
        return message

    return refuse
