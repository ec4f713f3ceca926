from __future__ import annotations

import numpy as np
import pytest

from engine.request import token_array


def test_token_array_of_any_kind_of_ids_is_a_copy_of_4_bytes_each() -> None:
    ids = np.array([3, 1, 2], dtype=np.int32)
    made = [token_array(each) for each in (ids, ids.astype(np.int64), ids.tolist(), token_array([3, 1, 2]))]
    ids[0] = 9
    assert all(each.tolist() == [3, 1, 2] and each.itemsize == 4 for each in made)
    assert token_array(np.arange(6, dtype=np.int32)[::2]).tolist() == [0, 2, 4]


@pytest.mark.parametrize("ids", [[2**31], np.array([2**31])])
def test_token_array_of_an_id_beyond_32_bits_is_refused(ids: list[int]) -> None:
    with pytest.raises(OverflowError):
        token_array(ids)
