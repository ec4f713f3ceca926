"""Reports of whole, partial and odd studies."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from workbench.report.study_facts import study_facts
from workbench.report.study_report import draw_all, write_study_report
from workbench.scenario import load_scenario, scenario_to_dict
from workbench.services.browse import load_study_facts
from workbench.services.report import write_report
from workbench.store import load_study, save_study

MakeStudy = Callable[..., dict[str, Any]]
ALL_PLOTS = {"objective", "tradeoff", "effects", "cdfs", "timeline"}


LATENCY = {"mean": 0.1, "p50": 0.1, "p90": 0.2, "p95": 0.25, "p99": 0.3, "max": 0.4, "num_samples": 40}
EMPTY = {**dict.fromkeys(LATENCY), "num_samples": 0}


def metrics(goodput_rps: float | None = 10.0, latency: dict[str, Any] | None = None) -> dict[str, Any]:
    """The object `M`."""
    found = dict.fromkeys(("slo_attainment", "kv_usage_mean", "kv_usage_max", "prefix_hit_rate"), 0.5)
    heads = ("ttft_s", "tpot_s", "itl_s", "e2el_s", "queue_s")
    return {
        "num_requests": 40,
        "num_completed": 40,
        "num_failed": 0,
        "duration_s": 4.0,
        "requests_per_s": goodput_rps,
        "output_tokens_per_s": None if goodput_rps is None else goodput_rps * 50,
        "total_tokens_per_s": None if goodput_rps is None else goodput_rps * 90,
        "goodput_rps": goodput_rps,
        "num_preemptions": 3,
        **found,
        **{head: dict(LATENCY if latency is None else latency) for head in heads},
    }


def trial(number: int, goodput_rps: float | None = 10.0, **changes: Any) -> dict[str, Any]:
    """One complete, valid trial that keeps its SLO, and what differs from that."""
    return {
        "number": number,
        "state": "COMPLETE",
        "params": {"max_num_seqs": 4 + number, "block_size": 16},
        "metrics": metrics(goodput_rps),
        "verdict": "VALID",
        "reason": None,
        "objective": goodput_rps,
        "constraints": {"ttft_p95": -0.02},
        "run": None,
        "duration_s": 1.0,
        "decision_fingerprint": f"f{number}",
        "binding": None,
    } | changes


def unscored(number: int, state: str, reason: str | None) -> dict[str, Any]:
    changes = {"metrics": None, "verdict": None, "objective": None, "constraints": {}, "decision_fingerprint": None}
    return trial(number, state=state, reason=reason, **changes)


@pytest.fixture
def make_study() -> Callable[..., dict[str, Any]]:
    """The object of `study.json`."""

    def make(trials: Sequence[dict[str, Any]], best: int | None = None, **changes: Any) -> dict[str, Any]:
        return {
            "study": "demo-1",
            "scenario": "demo",
            "objective": "goodput_rps",
            "direction": "maximize",
            "best": None if best is None else {"number": best},
            "gain": None,
            "conclusion": "So it is.",
            "trials": list(trials),
            "repeats": {},
            "slo": {"ttft_p95": 0.3, "attainment_target": 0.99},
            "space": {"max_num_seqs": {"low": 4, "high": 64, "log": True}, "block_size": {"choices": [8, 16]}},
            "stopped": None,
            "scenario_resolved": {"name": "demo", "seed": 3, "search": {"trials": 8, "seed": None}},
        } | changes

    return make


def text_of(html: str) -> str:
    """What a reader sees."""
    return re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<style>.*?</style>", "", html))


def check_documents(paths: dict[str, Path]) -> str:
    html, markdown = paths["html"].read_text(), paths["markdown"].read_text()
    assert not re.search(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//""", html)
    assert "url(" not in html
    assert "@import" not in html
    for text in (text_of(html), markdown):
        assert not re.search(r"\b(?:nan|inf|null)\b", text, re.IGNORECASE)
        assert not re.search(r"\bNone\b(?!:)", text)
        assert "Traceback" not in text
    for name in re.findall(r"\]\((plots/[^)]+)\)", markdown):
        assert (paths["markdown"].parent / name).read_bytes().startswith(b"\x89PNG")
    return text_of(html)


def test_write_report_of_a_real_sweep_has_every_plot_and_section(swept_study: Path) -> None:
    paths = write_report(swept_study)
    text = check_documents(paths)
    assert {path.stem for path in (swept_study / "plots").iterdir()} >= ALL_PLOTS
    for heading in ("Best against default", "Service level objectives", "Can the runs be trusted?", "All trials"):
        assert heading in text
    assert load_study(swept_study)["conclusion"][:30] in text
    assert "--trials 4 --seed 7" in text
    assert not list(swept_study.rglob(".writing-*"))


def test_report_scenario_copy_is_the_scenario(swept_study: Path) -> None:
    write_report(swept_study)
    again = load_scenario(swept_study / "scenario.yaml")
    assert scenario_to_dict(again) == load_study(swept_study)["scenario_resolved"]


def test_facts_of_a_real_sweep_hold_samples_timeline_and_limits(swept_study: Path) -> None:
    study = load_study_facts(swept_study)
    assert sum(trial.state != "INFEASIBLE" for trial in study.trials) == 4
    run = study.runs[0]
    assert set(run.samples) == {"all", "short", "long"}
    assert sum(len(run.samples[name]["ttft_s"]) for name in ("short", "long")) == 16
    assert [limit.name for limit in run.limits] == ["ttft_p95", "tpot_p90"]
    assert all(limit.achieved == 1.0 and limit.is_met for limit in run.limits)
    assert run.timeline is not None
    assert run.timeline.running.max() == run.binding["most_running"]  # type: ignore[index]
    assert study.provenance["versions"]["torch"]


def test_report_without_run_directories_says_so_and_draws_the_rest(tmp_path: Path, make_study: MakeStudy) -> None:
    save_study(tmp_path / "s", make_study([trial(0, run="trial-0000"), trial(1, 12.0)], best=1))
    text = check_documents(write_report(tmp_path / "s"))
    assert "The records of trial 0 cannot be shown" in text
    assert {path.stem for path in (tmp_path / "s" / "plots").iterdir()} == {"objective", "tradeoff", "effects"}


@pytest.mark.parametrize(
    "trials",
    [
        pytest.param([], id="no_trials"),
        pytest.param([trial(0)], id="only_the_default"),
        pytest.param([unscored(0, "FAILED", "boom")], id="default_failed"),
        pytest.param([unscored(n, "INFEASIBLE", "no room\nraise it") for n in range(3)], id="all_infeasible"),
        pytest.param([trial(0), unscored(1, "PRUNED", None)], id="one_pruned"),
        pytest.param([trial(0, None, metrics=metrics(None, EMPTY))], id="everything_null"),
        pytest.param([trial(0, 0.0), trial(1, 0.0)], id="nothing_good"),
        pytest.param([trial(0, 1e12), trial(1, 3.0)], id="huge"),
        pytest.param([trial(0, verdict="INVALID", reason="all | failed <b>")], id="invalid"),
        pytest.param([trial(n, 5.0, params={}) for n in range(2)], id="no_params"),
    ],
)
def test_report_of_a_partial_study_is_readable(
    tmp_path: Path, make_study: MakeStudy, trials: list[dict[str, Any]]
) -> None:
    save_study(tmp_path / "s", make_study(trials))
    text = check_documents(write_report(tmp_path / "s"))
    assert "So it is." in text
    for one in trials:
        assert one["state"].lower() in text


def test_report_without_best_shows_the_nearest_miss(tmp_path: Path, make_study: MakeStudy) -> None:
    misses = {0: 0.5, 1: 0.1, 2: 0.3}
    trials = [trial(number, constraints={"ttft_p95": value}) for number, value in misses.items()]
    facts = study_facts("s", make_study(trials))
    assert facts.best is None
    assert facts.rival_name == "nearest miss (trial 1)"
    text = check_documents(write_study_report(tmp_path, facts))
    assert "there is no best" in text


def test_report_states_gain_repeats_and_disagreement(tmp_path: Path, make_study: MakeStudy) -> None:
    values = make_study(
        [trial(0, 3.0), trial(1, 10.0)],
        best=1,
        gain={"value": 0.02, "low": -0.03, "high": 0.07},
        repeats={"default": [9.8, 10.0], "best": [10.0, 10.2]},
    )
    text = check_documents(write_study_report(tmp_path, study_facts("s", values)))
    assert "+2.0 % (95 % interval -3.0 % to +7.0 %)" in text
    assert "default had 3.00 req/s in the search but 9.80 to 10.0 req/s in the repeats" in text


def test_report_names_parameters_that_changed_nothing(tmp_path: Path, make_study: MakeStudy) -> None:
    trials = [trial(number, decision_fingerprint="same") for number in (0, 1)]
    save_study(tmp_path / "s", make_study(trials, best=0))
    text = check_documents(write_report(tmp_path / "s"))
    assert "Trials 0, 1 made identical scheduling decisions: max_num_seqs (4 / 5) changed nothing." in text


def test_report_shows_importances_from_eight_trials_on(tmp_path: Path, make_study: MakeStudy) -> None:
    trials = [trial(n, 10.0 + n, params={"max_num_seqs": 4 + n, "block_size": (8, 16)[n % 2]}) for n in range(8)]
    save_study(tmp_path / "few", make_study(trials[:7], best=6))
    save_study(tmp_path / "enough", make_study(trials, best=7))
    assert load_study_facts(tmp_path / "few").importances is None
    enough = load_study_facts(tmp_path / "enough")
    assert enough.importances is not None
    assert max(enough.importances, key=enough.importances.__getitem__) == "max_num_seqs"
    assert "importances" in draw_all(enough)[0]


def test_report_says_which_two_parameters_matter_together(tmp_path: Path, make_study: MakeStudy) -> None:
    grid = [(seqs, size) for seqs in (4, 8, 12, 16, 24, 32, 48, 60, 64) for size in (8, 16)]
    trials = [
        trial(n, 10.0 + seqs * (1 if size == 8 else -1) / 10, params={"max_num_seqs": seqs, "block_size": size})
        for n, (seqs, size) in enumerate(grid)
    ]
    save_study(tmp_path / "s", make_study(trials, best=16))
    facts = load_study_facts(tmp_path / "s")
    assert facts.pair == ("max_num_seqs", "block_size")
    assert "pair" in draw_all(facts)[0]
    assert "max_num_seqs and block_size interact:" in check_documents(write_report(tmp_path / "s"))
    save_study(tmp_path / "few", make_study(trials[:5], best=4))
    assert "cannot be told from these 5 complete trials" in check_documents(write_report(tmp_path / "few"))


def test_drawings_are_the_same_for_the_same_study(make_study: MakeStudy) -> None:
    facts = study_facts("s", make_study([trial(0), trial(1, 12.0)], best=1))
    assert draw_all(facts) == draw_all(facts)


def test_report_shows_an_objective_that_no_single_run_measures(tmp_path: Path, make_study: MakeStudy) -> None:
    trials = [trial(0) | {"objective": 21.1}, trial(1) | {"objective": 21.5}]

    found = study_facts("s", make_study(trials, best=1, objective="sustainable_rate_per_s"))

    assert [each.value("sustainable_rate_per_s") for each in found.trials] == [21.1, 21.5]
    text = check_documents(write_study_report(tmp_path, found))
    assert "21.5 req/s" in text
