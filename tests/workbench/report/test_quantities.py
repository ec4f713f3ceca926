"""Figures as people read them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workbench.metrics.records import StepTable
from workbench.report.document import Cell, Code, Heading, Paragraph, Table, to_html, to_markdown
from workbench.report.quantities import number, scale_of, seconds, shown, signed_share
from workbench.report.run_facts import timeline_of
from workbench.report.run_plots import cdf_points


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0.0, "0"),
        (0.12345, "0.123"),
        (4.567, "4.57"),
        (45.67, "45.7"),
        (12345.6, "12,346"),
    ],
)
def test_number_has_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_quantities_carry_their_unit() -> None:
    assert seconds(0.0123) == "12.3 ms"
    assert seconds(2.5) == "2.50 s"
    assert shown("slo_attainment", 0.5) == "50.0 %"
    assert shown("output_tokens_per_s", 1234.0) == "1,234 tokens/s"
    assert shown("ttft_s.p95", None) == "–"
    assert signed_share(-0.0001) == "+0.0 %"
    assert signed_share(11.0) == "×12.0"
    assert scale_of("ttft_s", [0.1, None, 0.2]) == (1000.0, "ms")
    assert scale_of("ttft_s", [100.0, 200.0]) == (1.0, "s")


def test_documents_escape_what_markup_would_read() -> None:
    blocks = [
        Heading(text="a <b>"),
        Paragraph(text="x_y | z"),
        Table(header=["n"], rows=[[Cell(text="1 | 2", tone="strong")]]),
        Code(text="a <b"),
    ]
    assert r"x\_y \| z" in to_markdown(blocks)
    html = to_html(blocks, {}, title="<t>")
    assert "<b>" not in html
    assert "<title>&lt;t&gt;</title>" in html


def test_cdf_points_end_at_one_and_stay_few() -> None:
    x, y = cdf_points(np.sort(np.random.default_rng(1).exponential(size=5000)))
    assert len(x) <= 402
    assert y[0] == 0
    assert y[-1] == 1
    assert (np.diff(y) > 0).all()
    assert len(cdf_points(np.zeros(0))[0]) == 0


def test_timeline_holds_state_where_a_step_outlasts_a_span() -> None:
    start, end = np.array([0.0, 0.1, 0.9]), np.array([0.1, 0.8, 1.0])
    names = [name for name in StepTable.__dataclass_fields__ if name.startswith("num_")]
    columns = {name: np.array([1, 5, 2]) for name in names}
    steps = StepTable(start_s=start, end_s=end, admission_stop=("no_waiting",) * 3, **columns)
    line = timeline_of(steps)
    assert line is not None
    assert line.running.tolist() == [5.0, 5.0, 2.0]
    assert np.isnan(line.tokens_mean).tolist() == [False, True, False]
    assert line.preemptions.sum() == 8
    assert line.num_blocks == 10


def test_timeline_of_a_fleet_adds_its_engines_up_and_shows_idle_ones_as_empty() -> None:
    start, end = np.array([0.0, 0.0, 0.8]), np.array([0.2, 0.5, 1.0])
    names = [name for name in StepTable.__dataclass_fields__ if name.startswith("num_")]
    columns = {name: np.array([1, 5, 2]) for name in names}
    replica = np.array([0, 1, 0])
    steps = StepTable(start_s=start, end_s=end, admission_stop=("no_waiting",) * 3, replica=replica, **columns)

    line = timeline_of(steps)

    assert line is not None
    assert line.running.tolist() == [6.0, 5.0, 2.0]  # spans of a third of a second
    assert line.num_engines == 2
    assert line.num_blocks == 14  # each engine's most in use and free
