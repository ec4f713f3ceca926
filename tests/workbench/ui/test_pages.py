"""Both pages on an empty, a full and a broken store, without a browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from workbench.scenario import load_scenario
from workbench.services.evaluate import run_scenario, store_run

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = "from workbench.ui import {page}\n{page}.page()\n"
PAGES = ("page_sweep", "page_run")


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> object:
    def open_it(page: str, store: Path) -> AppTest:
        monkeypatch.setenv("WORKBENCH_STORE", str(store))
        return AppTest.from_string(SCRIPT.format(page=page), default_timeout=30).run()

    return open_it


def words(app: AppTest) -> str:
    kinds = (app.title, app.subheader, app.markdown, app.text, app.info, app.success, app.warning, app.error)
    return "\n".join([element.value for kind in kinds for element in kind] + [one.value for one in app.code])


@pytest.mark.parametrize("page", PAGES)
def test_page_on_an_empty_store_says_what_to_do(page: str, open_page: object, tmp_path: Path) -> None:
    app = open_page(page, tmp_path / "nothing")  # type: ignore[operator]
    assert not app.exception
    assert "workbench" in words(app)
    assert not app.error


def test_sweep_page_shows_conclusion_figures_and_plots(open_page: object, swept_store: Path, swept_study: Path) -> None:
    app = open_page("page_sweep", swept_store)  # type: ignore[operator]
    assert not app.exception
    assert not app.error
    text = words(app)
    conclusion = json.loads((swept_study / "study.json").read_text())["conclusion"]
    assert conclusion in text
    assert "Not finished" not in text
    assert len(app.metric) >= 4
    assert len(app.dataframe[0].value) >= 4  # infeasible ones come on top
    assert len(app.get("plotly_chart")) == 3 + 4 + 1


def test_sweep_page_follows_a_study_without_report(open_page: object, swept_study: Path, tmp_path: Path) -> None:
    values = json.loads((swept_study / "study.json").read_text())
    values |= {"gain": None, "best": None, "repeats": {}, "trials": values["trials"][:2]}
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "study.json").write_text(json.dumps(values))
    app = open_page("page_sweep", tmp_path)  # type: ignore[operator]
    assert not app.exception
    assert "Not finished: 2 of 16 trials so far" in words(app)


def test_run_page_shows_every_run_of_the_store(open_page: object, swept_store: Path) -> None:
    app = open_page("page_run", swept_store)  # type: ignore[operator]
    options = app.selectbox[0].options
    assert options[0] == "quickstart-1"
    assert sum(" / trial-" in option for option in options) >= 1
    for option in options[:2]:
        app.selectbox[0].set_value(option).run()
        assert not app.exception
        assert not app.error
        assert len(app.get("plotly_chart")) == 5
        assert "| TTFT | all |" in words(app)


def test_run_page_of_a_fleet_shows_its_replicas(open_page: object, tmp_path: Path) -> None:
    scenario = load_scenario(REPOSITORY / "scenarios" / "fleet-rush.yaml")
    store_run(tmp_path / "runs" / "fleet-1", run_scenario(scenario))

    app = open_page("page_run", tmp_path)  # type: ignore[operator]

    assert not app.exception
    text = words(app)
    assert "| replica-5 | both |" in text
    assert "requests were sent again after a failure" in text
    assert "replicas up" in app.get("plotly_chart")[-1].proto.spec


@pytest.mark.parametrize("page", PAGES)
def test_broken_folders_are_listed_with_their_problem(
    page: str, open_page: object, swept_store: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(swept_store, store)
    for text, name in (("{", "cut"), ('{"trials": [{}]}', "odd"), ("[]", "list")):
        (store / name).mkdir()
        (store / name / "study.json").write_text(text)
    (store / "runs" / "empty").mkdir()
    (store / "runs" / "quickstart-1" / "steps.parquet").write_bytes(b"PAR1")
    app = open_page(page, store)  # type: ignore[operator]
    assert not app.exception
    text = words(app)
    if page == "page_sweep":
        assert all(f"{name}: " in text for name in ("cut", "odd", "list"))
    else:
        assert "empty: " in text
        assert "steps.parquet" in app.error[0].value


def test_runs_page_lists_nothing_but_runs(swept_store: Path) -> None:
    from workbench.services import browse

    study = next(path for path in swept_store.iterdir() if (path / "study.json").exists())
    (study / "artifacts").mkdir(exist_ok=True)
    assert [entry.name for entry in browse.runs(swept_store) if entry.problem is not None] == []


def test_streamlit_by_itself_listens_on_this_machine_and_sends_no_statistics() -> None:
    import tomllib

    settings = tomllib.loads((REPOSITORY / ".streamlit/config.toml").read_text())
    assert settings["server"]["address"] == "127.0.0.1"
    assert settings["browser"]["gatherUsageStats"] is False
