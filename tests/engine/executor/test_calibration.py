from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from engine.executor.calibration import _all_reduce_tables, columns_of, fit_correction, fit_profile


def test_correction_follows_its_rows_and_fades_to_one_far_from_them() -> None:
    features = np.arange(8.0)[:, None]
    correction = fit_correction(features, np.full(8, np.log(1.2)), (2.0,), 0.1)
    near, far = correction.factor(np.array([[3.5], [60.0]])).tolist()
    assert near == pytest.approx(1.2, rel=0.02)
    assert far == pytest.approx(1.0)


def test_correction_beside_one_odd_row_stays_with_the_others() -> None:
    """Seven rows 10 % slow, one 3 times: least squares alone would say 1.6 there."""
    features = np.arange(8.0)[:, None]
    residual = np.log(np.array([1.1, 1.1, 1.1, 3.0, 1.1, 1.1, 1.1, 1.1]))
    (factor,) = fit_correction(features, residual, (2.0,), 0.3).factor(np.array([[3.0]])).tolist()
    assert 1.05 < factor < 1.3


COMM = {"op": "all_reduce", "kernel": "NCCL", "num_gpus": "2", "message_bytes": "1024", "time_us": "10"}


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_all_reduce_rows_of_one_size_give_their_median(tmp_path: Path) -> None:
    rows = [{**COMM, "message_bytes": "2048"}, *({**COMM, "time_us": str(time)} for time in (10, 90, 20))]
    tables = _all_reduce_tables(write(tmp_path / "comm.csv", rows))
    assert tables == {"NCCL/2": [(1024.0, pytest.approx(20e-6)), (2048.0, pytest.approx(10e-6))]}


@pytest.mark.parametrize("name", ["num_gpus", "message_bytes", "time_us"])
@pytest.mark.parametrize("odd", ["", "x", "0", "-1", "nan", "inf"])
def test_all_reduce_row_that_is_no_measurement_is_named(tmp_path: Path, name: str, odd: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: must be a number from .* \(got '{odd}'\)"):
        _all_reduce_tables(write(tmp_path / "comm.csv", [COMM, {**COMM, name: odd}]))


@pytest.mark.parametrize("odd", ["", "x", "0", "-1", "nan", "inf"])
def test_operator_row_without_a_shape_is_named(odd: str) -> None:
    with pytest.raises(ValueError, match=rf"^n: must be a number from 1 \(got '{odd}'\)"):
        columns_of("gemm", [{"m": "1", "n": odd, "k": "16"}])


def test_operator_table_without_rows_is_named(tmp_path: Path) -> None:
    for kind in ("gemm", "decode_attention", "prefill_attention"):
        (tmp_path / f"{kind}_mine.csv").write_text("gpu,m,n,k,dtype,time_us\n")
    with pytest.raises(ValueError, match=r"^gemm_mine\.csv: has no rows$"):
        fit_profile(tmp_path, "mine")
