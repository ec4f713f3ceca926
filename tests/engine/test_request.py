"""What a request takes for its fields, and what it refuses, as machine code and as Python alike."""

from __future__ import annotations

import copy
import pickle
from array import array
from typing import Any

import numpy as np
import pytest

from engine.errors import ConfigError
from engine.outputs import BlockCopy, ModelRunnerOutput, RequestOutput, ScheduledRequest
from engine.request import Request, RequestStatus, token_array
from engine.sampling_params import SamplingParams
from engine.simulation import SimulatedDevice
from engine.stats import AdmissionStop, PrefixCacheStats, StepStats


def make_request(**options: Any) -> Request:
    return Request("a", [1, 2, 3], SamplingParams(max_tokens=4), **options)


@pytest.mark.parametrize(
    "given",
    [
        [0, 2, 4],
        (0, 2, 4),
        range(0, 6, 2),
        array("q", [0, 2, 4]),
        [np.int64(0), np.int32(2), np.uint8(4)],
        np.array([0, 2, 4]),
        np.array([0, 2, 4], dtype=">i4"),
        np.arange(6, dtype=np.int32)[::2],
        np.array([4, 2, 0], dtype=np.int32)[::-1],
    ],
    ids=repr,
)
def test_token_array_of_any_row_of_whole_numbers_holds_them(given: Any) -> None:
    assert token_array(given) == array("i", [0, 2, 4])


def test_token_array_is_a_copy() -> None:
    ids = np.array([3, 1, 2], dtype=np.int32)
    made = [token_array(each) for each in (ids, ids.astype(np.int64), token_array(ids))]
    ids[0] = 9
    assert [each.tolist() for each in made] == [[3, 1, 2]] * 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 1.5], r"must be whole numbers of 32 bits \(got 1.5\)"),
        ([1, "a"], r"must be whole numbers of 32 bits \(got 'a'\)"),
        ([None], r"must be whole numbers of 32 bits \(got None\)"),
        ([1, 2**31], r"must be whole numbers of 32 bits \(got 2147483648\)"),
        (np.array([1, 2**40]), r"must be whole numbers of 32 bits \(got 1099511627776\)"),
        (np.array([1.0, 2.0]), r"must be whole numbers of 32 bits \(got 1.0\)"),
        (np.array([[1, 2]], dtype=np.int32), r"must be one row of whole numbers \(got an array of shape \(1, 2\)\)"),
        (np.array(3, dtype=np.int32), r"must be one row of whole numbers \(got an array of shape \(\)\)"),
        (b"four", r"must be whole numbers \(got b'four'\). Encode a text first"),
        ("abc", r"must be whole numbers \(got 'abc'\). Encode a text first"),
        (5, r"must be a sequence of whole numbers \(got 5\)"),
        (None, r"must be a sequence of whole numbers \(got None\)"),
    ],
)
def test_token_array_of_anything_else_names_rule_and_value(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        token_array(given)


def test_request_takes_numpy_numbers_for_its_own() -> None:
    request = make_request(arrival_time_s=np.float32(0.5), priority=np.int64(2))
    assert (request.arrival_time_s, request.priority) == (0.5, 2)
    assert (type(request.arrival_time_s), type(request.priority)) == (float, int)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_request_is_copied_with_its_state(duplicate: Any) -> None:
    request = make_request(arrival_time_s=1.5, priority=3, cache_salt="s")
    request.status, request.num_computed_tokens, request.block_ids = RequestStatus.RUNNING, 2, [7]
    other = duplicate(request)
    assert repr(other) == repr(request)
    assert (other.arrival_time_s, other.cache_salt, other.block_ids) == (1.5, "s", [7])
    assert (other.all_token_ids, other.priority, other.status) == (array("i", [1, 2, 3]), 3, RequestStatus.RUNNING)


RECORDS = (
    BlockCopy(source=1, destination=2, num_tokens=3),
    ScheduledRequest(
        request_id="a", num_scheduled_tokens=1, num_computed_tokens=0, num_tokens=1, token_ids=[1], block_ids=[1],
        sampling=SamplingParams(), is_prefill=True,
    ),
    RequestOutput("a", (1,), "stop", 0, 0, 0),
    ModelRunnerOutput({"a": 1}, {"a": {1: -0.5}}),
    PrefixCacheStats(hit_tokens=2),
    StepStats(
        step_index=1, start_s=0.0, end_s=1.0, num_running=1, num_waiting=0, num_scheduled_requests=1,
        num_scheduled_tokens=1, num_prefill_tokens=1, num_blocks_in_use=1, num_free_blocks=1, num_preempted=0,
        num_recomputed_tokens=0, num_kv_tokens=1, admission_stop=AdmissionStop.NO_WAITING,
    ),
    SimulatedDevice.of("h100-80g-sxm", tensor_parallel_size=2, quantization="fp8"),
)  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_record_survives_copy_and_pickle(record: Any) -> None:
    assert copy.deepcopy(record) == record
    assert pickle.loads(pickle.dumps(record)) == record
