"""Calibration profiles on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.executor.cost_model.calibrated import Adjustment
from engine.executor.cost_model.calibration_profile import CalibrationProfile, Validity, load_calibration
from engine.executor.cost_model.machine import CORNERS, TERMS, MachineCost


def make_machine_profile() -> CalibrationProfile:
    cost = MachineCost(slopes_s=(2e-6,) * (len(CORNERS) - 1), terms_s=dict.fromkeys(TERMS, 1e-6))
    return CalibrationProfile(
        kind="machine",
        name="here",
        model="tiny",
        machine=cost,
        wake_s=0.5,
        errors={"decode": {"median": 0.02, "p90": 0.05}},
        validity=Validity(max_num_seqs=8),
    )


def test_profile_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    for profile in (
        make_machine_profile(),
        CalibrationProfile(kind="adjusted", name="here", gpu="a100-80g-sxm", adjustment=Adjustment(step_s=0.5)),
    ):
        path = tmp_path / "here.json"
        path.write_text(json.dumps(profile.to_dict()), encoding="utf-8")
        assert load_calibration(path) == profile


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "format 'other', not"),
        ({"kind": "guess"}, "is not a calibration profile"),
        ({"machine": None}, "is not a calibration profile"),
        ({"validity": {"max_num_cats": 3}}, "is not a calibration profile"),
    ],
)
def test_load_names_what_is_wrong(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(make_machine_profile().to_dict() | change), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_calibration(path)


def test_load_refuses_negative_times_and_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    values = make_machine_profile().to_dict()
    values["machine"]["terms_us"]["step"] = -1.0
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ConfigError, match="not a time or factor"):
        load_calibration(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_calibration(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_calibration(tmp_path / "none.json")
