"""Distributions reproduce what they state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy import stats

from workbench.scenario import ScenarioError
from workbench.scenario.lengths import LengthSpec, shortest
from workbench.workload.lengths import Draw, draw_lengths
from workbench.workload.randomness import stream

N = 100_000


def draw(spec: Any, count: int = N) -> Draw:
    return draw_lengths(TypeAdapter(LengthSpec).validate_python(spec), count, stream(0, "test"))


def test_draw_constant_is_constant() -> None:
    assert set(draw(17).tokens.tolist()) == {17}


def test_draw_uniform_includes_both_ends() -> None:
    tokens = draw({"kind": "uniform", "low": 3, "high": 5}).tokens
    assert np.bincount(tokens)[3:] / N == pytest.approx([1 / 3] * 3, abs=0.01)


@pytest.mark.parametrize(
    "percentiles",
    [
        {"p50": 300, "p90": 900, "p99": 2000},
        {"p10": 20, "p50": 1000, "p75": 1010, "p99": 5000},
        {"p50": 400, "p95": 400, "p99": 1500},
    ],
)
def test_draw_percentiles_are_reproduced_within_two_percent(percentiles: dict[str, float]) -> None:
    tokens = draw({"percentiles": percentiles}, 1_000_000).tokens
    for name, stated in percentiles.items():
        assert np.percentile(tokens, float(name[1:])) == pytest.approx(stated, rel=0.02)


@pytest.mark.parametrize(
    ("spec", "quantile"),
    [
        (417, lambda q: np.full(len(q), 417.0)),
        ({"kind": "uniform", "low": 100, "high": 900}, stats.randint(100, 901).ppf),
        ({"kind": "normal", "mean": 900, "std": 200}, stats.norm(900, 200).ppf),
        ({"kind": "normal", "mean": 500, "std": 400, "min": 100, "max": 1000}, None),
        ({"kind": "lognormal", "median": 400, "sigma": 0.7}, stats.lognorm(0.7, scale=400).ppf),
        ({"kind": "lognormal", "mean": 400, "sigma": 0.7}, stats.lognorm(0.7, scale=400 * np.exp(-0.245)).ppf),
        ({"kind": "zipf", "exponent": 0.4, "low": 200, "high": 1500}, None),
        ({"kind": "empirical", "values": [200, 400, 800, 1600], "weights": [4, 3, 2, 1]}, None),
    ],
)
def test_draw_has_the_percentiles_of_its_distribution(spec: Any, quantile: Any) -> None:
    percents = np.array([10.0, 50, 75, 90, 95, 99])
    if quantile is None:
        quantile = _quantiles_of(spec)
    assert np.percentile(draw(spec).tokens, percents) == pytest.approx(quantile(percents / 100), rel=0.02)


def _quantiles_of(spec: Any) -> Any:
    """From the stated probabilities, summed by hand."""
    if spec["kind"] == "normal":
        bounds = [(bound - spec["mean"]) / spec["std"] for bound in (spec["min"] - 0.5, spec["max"] + 0.5)]
        return stats.truncnorm(*bounds, loc=spec["mean"], scale=spec["std"]).ppf
    if spec["kind"] == "zipf":
        values = np.arange(spec["low"], spec["high"] + 1)
        weights = (values - spec["low"] + 1.0) ** -spec["exponent"]
    else:
        values, weights = np.array(spec["values"]), np.array(spec["weights"], dtype=float)
    cumulative = np.cumsum(weights) / weights.sum()
    # A percentile on the edge between two values may fall on either.
    return lambda q: values[np.searchsorted(cumulative, q - 1e-3)].astype(float)


def test_draw_percentiles_hold_at_a_hundred_thousand() -> None:
    percentiles = {"p50": 300, "p90": 900, "p99": 2000}
    tokens = draw({"percentiles": percentiles}).tokens
    for name, stated in percentiles.items():
        assert np.percentile(tokens, float(name[1:])) == pytest.approx(stated, rel=0.02)


def test_draw_percentiles_p0_and_p100_are_bounds() -> None:
    tokens = draw({"percentiles": {"p0": 50, "p50": 100, "p90": 400, "p100": 500}}).tokens
    assert tokens.min() == 50
    assert tokens.max() == 500


@pytest.mark.parametrize(
    ("spec", "mean", "median"),
    [
        ({"kind": "lognormal", "median": 400, "sigma": 0.8}, 400 * np.exp(0.32), 400),
        ({"kind": "lognormal", "mean": 400, "sigma": 0.8}, 400, 400 * np.exp(-0.32)),
        ({"kind": "normal", "mean": 400, "std": 50}, 400, 400),
    ],
)
def test_draw_moments_are_as_stated(spec: Any, mean: float, median: float) -> None:
    tokens = draw(spec).tokens
    assert tokens.mean() == pytest.approx(mean, rel=0.02)
    assert np.median(tokens) == pytest.approx(median, rel=0.02)


def test_draw_lognormal_by_two_percentiles_has_them() -> None:
    tokens = draw({"kind": "lognormal", "percentiles": {"p50": 200, "p95": 1500}}).tokens
    assert np.percentile(tokens, [50, 95]).tolist() == pytest.approx([200, 1500], rel=0.02)


def test_draw_normal_is_truncated_not_piled_up_at_the_bounds() -> None:
    tokens = draw({"kind": "normal", "mean": 10, "std": 20, "max": 30}).tokens
    counts = np.bincount(tokens, minlength=31)
    assert counts[0] == 0
    assert counts[1] == pytest.approx(counts[2], rel=0.15)
    assert counts[30] == pytest.approx(counts[29], rel=0.15)


def test_draw_clamp_is_counted() -> None:
    drawn = draw({"kind": "lognormal", "median": 100, "sigma": 1, "min": 50, "max": 300})
    assert drawn.num_lowered / N == pytest.approx(0.136, abs=0.01)
    assert drawn.num_raised / N == pytest.approx(0.244, abs=0.01)
    assert (drawn.tokens.min(), drawn.tokens.max()) == (50, 300)


def test_draw_zipf_ratio_of_first_two_is_two_to_the_exponent() -> None:
    counts = np.bincount(draw({"kind": "zipf", "exponent": 1.5, "low": 10, "high": 1000}).tokens)
    assert counts[:10].sum() == 0
    assert counts[10] / counts[11] == pytest.approx(2**1.5, rel=0.03)


def test_draw_empirical_follows_the_weights() -> None:
    tokens = draw({"kind": "empirical", "values": [5, 50, 500], "weights": [1, 0, 3]}).tokens
    assert np.unique(tokens).tolist() == [5, 500]
    assert (tokens == 5).mean() == pytest.approx(0.25, abs=0.01)


def test_draw_empirical_column_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("id,tokens\na,7\nb,9\n")
    assert set(draw({"kind": "empirical", "path": path, "column": "tokens"}).tokens.tolist()) == {7, 9}


@pytest.mark.parametrize(
    ("content", "column", "expected"),
    [
        ("id,tokens\na,7\n", "token", "no column 'token'. Columns: id, tokens"),
        ("id,tokens\n", "tokens", "has no rows"),
        ("id,tokens\na,x\n", "tokens", "lengths.csv:2: tokens: must be a number"),
        ("id,tokens\na,7\nb\n", "tokens", "lengths.csv:3: tokens: must be a number"),
        ("id,tokens\na,nan\n", "tokens", "lengths.csv:2: tokens: must be a number"),
        ("", "tokens", "no column"),
    ],
)
def test_draw_empirical_bad_file_is_refused(tmp_path: Path, content: str, column: str, expected: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(content)
    with pytest.raises(ScenarioError) as caught:
        draw({"kind": "empirical", "path": path, "column": column})
    assert expected in str(caught.value)


def test_draw_absurd_tail_stays_a_whole_number() -> None:
    tokens = draw({"kind": "lognormal", "median": 1e9, "sigma": 50}).tokens
    assert tokens.min() >= 1
    assert tokens.max() <= 1 << 40


lengths = st.one_of(
    st.integers(1, 10**6),
    st.builds(
        lambda low, more: {"kind": "uniform", "low": low, "high": low + more}, st.integers(1, 999), st.integers(0, 99)
    ),
    st.builds(
        lambda median, sigma, low, more: {
            "kind": "lognormal",
            "median": median,
            "sigma": sigma,
            "min": low,
            "max": low + more,
        },
        st.floats(1, 1e6),
        st.floats(0.01, 9),
        st.integers(1, 999),
        st.integers(0, 999),
    ),
    st.builds(
        lambda mean, std, low, more: {"kind": "normal", "mean": mean, "std": std, "min": low, "max": low + more},
        st.floats(1, 1e4),
        st.floats(0.1, 1e4),
        st.integers(1, 9999),
        st.integers(0, 999),
    ),
)


@settings(max_examples=150, deadline=None)
@given(lengths)
def test_draw_stays_within_its_bounds(spec: Any) -> None:
    tokens = draw(spec, 200).tokens
    assert tokens.min() >= shortest(TypeAdapter(LengthSpec).validate_python(spec))
    if isinstance(spec, dict):
        assert tokens.max() <= spec.get("max", spec.get("high"))
