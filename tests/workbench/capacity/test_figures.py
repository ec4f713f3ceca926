"""Figures, errors and costs by hand."""

from __future__ import annotations

import pytest

from engine.catalog import find_gpu
from engine.errors import ConfigError
from workbench.capacity.cost import cost_of, parse_prices
from workbench.records.figures import UNKNOWN_ERROR, speed_error


def test_speed_error_takes_the_worst_operator() -> None:
    profile = {"name": "g", "kind": "catalogue", "error": {"a": {"p90": 0.1}, "b": {"p90": 0.2}}}

    assert speed_error(profile).share == 0.2


def test_speed_error_without_stated_errors_is_named_an_assumption() -> None:
    found = speed_error({"name": "g", "kind": "catalogue", "error": {}})

    assert found.share == UNKNOWN_ERROR
    assert "assumed" in found.source


def test_speed_error_of_an_operator_that_was_not_measured_is_assumed() -> None:
    profile = {"name": "g", "kind": "catalogue", "error": {"a": {"p90": 0.1}}, "unmeasured": ["all_reduce"]}

    assert speed_error(profile).share == UNKNOWN_ERROR
    assert speed_error(profile).source.endswith("assumed for all_reduce")


def test_cost_with_a_price_given_is_gpus_times_price_over_tokens() -> None:
    gpu = find_gpu("a100-80g-sxm")

    cost = cost_of(gpu, 3, 10_000.0, parse_prices(["a100-80g-sxm=2"]))

    assert cost["usd_per_hour"] == 6.0
    assert cost["usd_per_million_tokens"] == pytest.approx(6.0 / 36.0, rel=1e-3)
    assert cost["kwh_per_hour_at_most"] == 1.2  # 3 x 400 W
    assert cost["source"] == "given with --price"


@pytest.mark.parametrize("text", ["a100-80g-sxm", "a100-80g-sxm=cheap", "a100-80g-sxm=-1", "a100-80g-sxm=nan"])
def test_parse_prices_of_what_is_no_price_names_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--price"):
        parse_prices([text])
