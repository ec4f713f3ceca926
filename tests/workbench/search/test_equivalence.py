"""A limit that never bound makes no difference; everything else may."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.search.equivalence import find_duplicate
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.trials import TrialRecord

ENGINE = {
    "max_num_seqs": 128,
    "max_num_batched_tokens": 4096,
    "num_blocks": 5000,
    "gpu_memory_utilization": 0.9,
    "block_size": 16,
    "max_model_len": 4096,
    "enable_chunked_prefill": True,
    "batching": "continuous",
    "gpu": "a100-80g-sxm",
}
PEAKS = {"num_running": 60, "num_scheduled_tokens": 3000, "num_blocks": 2000, "kv_stopped": False}


def finished(**changes: Any) -> list[TrialRecord]:
    fields: dict[str, Any] = {"engine": ENGINE, "peaks": PEAKS, "objective": 5.0, "verdict": "VALID", **changes}
    return [TrialRecord(number=3, params={}, outcome=TrialOutcome(state=TrialState.COMPLETE, **fields))]


@pytest.mark.parametrize(
    ("changes", "unbound"),
    [
        ({}, ()),
        ({"max_num_seqs": 61}, ("max_num_seqs",)),
        ({"max_num_seqs": 1024}, ("max_num_seqs",)),
        ({"max_num_batched_tokens": 3001}, ("max_num_batched_tokens",)),
        ({"num_blocks": 2257, "gpu_memory_utilization": 0.8}, ("num_blocks",)),
    ],
)
def test_duplicate_where_the_limit_lies_over_the_peak(changes: dict[str, Any], unbound: tuple[str, ...]) -> None:
    found = find_duplicate(ENGINE | changes, finished(), shares_prefixes=False)
    assert found is not None
    assert (found.record.number, found.unbound) == (3, unbound)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_seqs": 60},
        {"max_num_batched_tokens": 3000},
        {"num_blocks": 2256},
        {"block_size": 32},
        {"gpu": "h100-80g-sxm"},
        {"max_model_len": 8192},
        {"replicas": 2},
    ],
)
def test_no_duplicate_where_something_else_differs_or_binds(changes: dict[str, Any]) -> None:
    assert find_duplicate(ENGINE | changes, finished(), shares_prefixes=False) is None


def test_no_duplicate_of_a_trial_whose_own_limit_bound() -> None:
    bound = finished(peaks=PEAKS | {"num_running": 128})
    assert find_duplicate(ENGINE | {"max_num_seqs": 256}, bound, shares_prefixes=False) is None


def test_no_duplicate_with_another_cache_where_prefixes_are_shared() -> None:
    assert find_duplicate(ENGINE | {"num_blocks": 6000}, finished(), shares_prefixes=True) is None


def test_no_duplicate_of_a_duplicate_or_a_failure() -> None:
    assert find_duplicate(ENGINE, finished(duplicate_of=1), shares_prefixes=False) is None
    assert find_duplicate(ENGINE, finished(peaks=None), shares_prefixes=False) is None
