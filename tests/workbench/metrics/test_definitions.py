"""The glossary's formulas with the glossary's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.metrics import definitions
from workbench.metrics.records import RequestTable

from .conftest import row

# Two requests with TTFT 500 ms: A has 9 gaps of 20 ms, B has 1 gap of 80 ms (GLOSSARY section 2).
EXAMPLE = [row(0.0, *(0.5 + 0.02 * gap for gap in range(10))), row(1.0, 1.5, 1.58)]


def test_definitions_glossary_example_tpot_50_ms_itl_26_ms(make_table: Any) -> None:
    table = make_table(EXAMPLE)
    assert definitions.ttft_s(table).tolist() == pytest.approx([0.5, 0.5])
    assert definitions.tpot_s(table).tolist() == pytest.approx([0.02, 0.08])
    assert definitions.tpot_s(table).mean() == pytest.approx(0.050)
    gaps = definitions.itl_s(table)
    assert len(gaps) == 10
    assert gaps.mean() == pytest.approx(0.026)
    assert definitions.e2el_s(table).tolist() == pytest.approx([0.68, 0.58])


def test_definitions_ttft_counts_from_intended_arrival_service_from_sending(make_table: Any) -> None:
    table = make_table([row(1.0, 4.0, 5.0, sent_s=3.0, scheduled_s=3.25)])
    assert definitions.ttft_s(table).tolist() == [3.0]
    assert definitions.ttft_service_s(table).tolist() == [1.0]
    assert definitions.e2el_s(table).tolist() == [4.0]
    assert definitions.e2el_service_s(table).tolist() == [2.0]
    assert definitions.client_lag_s(table).tolist() == [2.0]
    assert definitions.queue_s(table).tolist() == [0.25]
    assert definitions.e2el_per_token_s(table).tolist() == [2.0]


def test_definitions_without_tokens_nothing_exists(make_table: Any) -> None:
    table = make_table([row(0.0), row(0.0, 1.0), row(0.0)])
    assert np.isnan(definitions.ttft_s(table)).tolist() == [True, False, True]
    assert np.isnan(definitions.tpot_s(table)).all()
    assert definitions.itl_s(table).tolist() == []
    assert np.isnan(definitions.e2el_s(make_table([row(0.0)]))).all()


def test_definitions_itl_of_selected_rows_skips_empty_neighbours(make_table: Any) -> None:
    table = make_table([row(0.0, 1.0, 2.0), row(0.0), row(0.0, 5.0, 9.0, 10.0), row(0.0, 20.0, 20.5)])
    assert definitions.itl_s(table).tolist() == [1.0, 4.0, 1.0, 0.5]
    assert definitions.itl_s(table, np.array([False, True, True, False])).tolist() == [4.0, 1.0]
    assert definitions.itl_s(table, np.array([True, False, False, True])).tolist() == [1.0, 0.5]


requests = st.lists(
    st.tuples(st.floats(0, 100), st.lists(st.floats(0, 10), min_size=2, max_size=20)), min_size=1, max_size=20
)


@settings(max_examples=100, deadline=None)
@given(requests)
def test_definitions_ttft_plus_gaps_times_tpot_is_e2el(drawn: list[tuple[float, list[float]]]) -> None:
    counts = [len(gaps) for _, gaps in drawn]
    arrivals = np.array([arrival for arrival, _ in drawn])
    zeros = np.zeros(len(drawn), dtype=np.int64)
    times = np.concatenate([arrival + np.cumsum(gaps) for arrival, gaps in drawn])
    table = RequestTable(
        request_ids=tuple(map(str, range(len(drawn)))),
        class_names=("a",),
        class_index=zeros,
        arrival_s=arrivals,
        sent_s=arrivals,
        first_scheduled_s=arrivals,
        num_prompt_tokens=zeros,
        num_output_tokens=np.array(counts),
        num_cached_tokens=zeros,
        num_preemptions=zeros,
        outcome=zeros,
        token_times_s=times,
        token_offsets=np.concatenate([[0], np.cumsum(counts)]),
        num_events=np.array(counts),
    )
    whole = definitions.ttft_s(table) + (table.num_output_tokens - 1) * definitions.tpot_s(table)
    assert whole.tolist() == pytest.approx(definitions.e2el_s(table).tolist(), abs=1e-9)
    assert definitions.itl_s(table).sum() == pytest.approx(
        (definitions.e2el_s(table) - definitions.ttft_s(table)).sum(), abs=1e-6
    )
    assert len(definitions.itl_s(table)) == sum(counts) - len(drawn)
