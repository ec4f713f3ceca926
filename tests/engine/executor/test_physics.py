from __future__ import annotations

import numpy as np
import pytest

from engine.executor.cost_model.physics import Chip, gemm_s

CHIP = Chip(num_sms=100, bandwidth=1e12, flops=100e12)
LIBRARY = {"launch_us": 0.001, "compute": 1.0, "memory": 1.0, "sharpness": 8.0, "small_tile": 0.0, "l2_gain": 0.0,
           "l2_mib": 10.0, "l2_edge": 5.0, "short_k": 0.0, "quantise": 0.0}  # fmt: skip
BY_ROWS = {**LIBRARY, "row_ns": 0.0, "output": 0.0}


def seconds(p: dict[str, float], m: float, n: float, k: float) -> float:
    return float(gemm_s(p, *(np.array([float(size)]) for size in (m, n, k)), CHIP, 1.0, 1.0)[0])


def test_gemm_of_few_tiles_is_split_over_k_by_a_library_but_not_by_kernels_chosen_by_rows() -> None:
    """512 x 64 in tiles of 128 x 128 is four blocks, each on one SM of 100."""
    one_block = 2.0 * 128 * 128 * 16384 / (100e12 / 100)
    assert seconds(BY_ROWS, 512, 64, 16384) == pytest.approx(one_block, rel=0.01)
    assert seconds(LIBRARY, 512, 64, 16384) < 0.1 * one_block


def test_gemm_kernels_chosen_by_rows_take_longer_at_the_next_power_of_two() -> None:
    assert seconds(BY_ROWS, 17, 64, 65536) == pytest.approx(2.0 * seconds(BY_ROWS, 16, 64, 65536), rel=0.01)
    assert seconds(BY_ROWS, 17, 64, 65536) == pytest.approx(seconds(BY_ROWS, 32, 64, 65536), rel=0.01)


def test_gemm_adds_each_quantised_row_and_each_pass_over_the_output() -> None:
    plain = seconds(BY_ROWS, 1000, 2000, 256)
    assert seconds({**BY_ROWS, "row_ns": 5.0}, 1000, 2000, 256) - plain == pytest.approx(5e-6)
    assert seconds({**BY_ROWS, "output": 2.0}, 1000, 2000, 256) - plain == pytest.approx(2 * 4e6 / 1e12)
