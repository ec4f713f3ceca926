"""Reports of stored studies that are not as they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.scenario import ScenarioError
from workbench.services.browse import load_study_facts
from workbench.services.report import find_study
from workbench.store.errors import StoreError


@pytest.mark.parametrize("key", ["number", "metrics", "params", "constraints", "binding"])
def test_study_with_a_trial_of_another_shape_is_a_store_error(key: str, swept_study: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = json.loads((swept_study / "study.json").read_text())
    values["trials"][0][key] = "?"
    (tmp_path / "study.json").write_text(json.dumps(values))
    with pytest.raises(StoreError, match=r"study\.json: is not as expected"):
        load_study_facts(tmp_path)


def test_folder_without_a_study_is_the_user_s_error(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="is not a study"):
        find_study(tmp_path)
