"""Studies on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.store import StoreError, collect_provenance, list_studies, load_study, save_study, trial_directory
from workbench.store.studies import remove_unfinished, sole_writer


def test_save_study_replaces_in_one_step(tmp_path: Path) -> None:
    save_study(tmp_path / "s", {"trials": [1]})
    save_study(tmp_path / "s", {"trials": [1, 2], "name": "ü"})
    assert load_study(tmp_path / "s") == {"trials": [1, 2], "name": "ü"}
    assert [entry.name for entry in (tmp_path / "s").iterdir()] == ["study.json"]


def test_list_studies_reports_broken_ones(tmp_path: Path) -> None:
    save_study(tmp_path / "a", {"x": 1})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "study.json").write_text("[]")
    (tmp_path / "no study").mkdir()
    entries = list_studies(tmp_path)
    assert [(entry.directory.name, entry.values) for entry in entries] == [("a", {"x": 1}), ("b", None)]
    assert list_studies(tmp_path / "nowhere") == []


def test_load_study_missing_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        load_study(tmp_path)


def test_trial_directory_sorts_by_number(tmp_path: Path) -> None:
    assert trial_directory(tmp_path, 7).name == "trial-0007"


def test_collect_provenance_outside_a_checkout_has_no_commit(tmp_path: Path) -> None:
    found = collect_provenance(tmp_path)
    assert found["commit"] is None
    assert found["has_local_changes"] is None
    assert found["versions"]["numpy"]
    assert found["hardware"]["num_cpus"] >= 1


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity"])
def test_load_study_number_that_is_not_finite_is_a_store_error(number: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(f'{{"objective": {number}}}')
    with pytest.raises(StoreError, match="not a finite number"):
        load_study(tmp_path)


def test_sole_writer_keeps_a_second_one_out_until_the_first_has_ended(tmp_path: Path) -> None:
    with sole_writer(tmp_path), pytest.raises(StoreError, match="another sweep"), sole_writer(tmp_path):
        pass
    with sole_writer(tmp_path):
        pass


def test_remove_unfinished_keeps_what_is_finished_and_what_is_not_ours(tmp_path: Path) -> None:
    for name in ("trial-0001", "trial-0002", "plots", ".writing-trial-0003-7"):
        (tmp_path / name).mkdir()
    (tmp_path / ".writing-study.json-7").touch()
    (tmp_path / "study.json").touch()
    remove_unfinished(tmp_path, {1})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["plots", "study.json", "trial-0001"]
