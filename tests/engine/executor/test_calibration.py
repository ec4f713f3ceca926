from __future__ import annotations

import numpy as np
import pytest

from engine.executor.calibration import fit_correction


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
