"""`report.md` and `report.html` of a study, with its plots, written into the study's folder."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from workbench.report.canvas import png
from workbench.report.document import PLOTS_FOLDER, to_html, to_markdown
from workbench.report.facts import StudyFacts
from workbench.report.pair_plot import draw_pair
from workbench.report.run_plots import draw_cdfs, draw_timeline, study_curves
from workbench.report.search_sections import pair_in_words
from workbench.report.sections import report_blocks
from workbench.report.trial_plots import draw_effects, draw_importances, draw_objective, draw_tradeoff

SCENARIO_FILE = "scenario.yaml"


def write_study_report(directory: Path, study: StudyFacts) -> dict[str, Path]:
    """Write Markdown (plots as files beside it) and self-contained HTML; returns both paths by kind.

    Each file is replaced in one step, the two documents last, so that a reader never sees half of one.
    Raises `OSError` where the folder cannot be written.
    """
    pictures, captions = draw_all(study)
    for key, data in pictures.items():
        _replace(directory / PLOTS_FOLDER / f"{key}.png", data)
    if study.scenario_resolved:
        _replace(directory / SCENARIO_FILE, scenario_yaml(study.scenario_resolved).encode())
    blocks = report_blocks(study, captions, reproduction(directory, study))
    paths = {"markdown": directory / "report.md", "html": directory / "report.html"}
    _replace(paths["markdown"], to_markdown(blocks).encode())
    _replace(paths["html"], to_html(blocks, pictures, title=f"Tuning report: {study.scenario}").encode())
    return paths


def draw_all(study: StudyFacts) -> tuple[dict[str, bytes], dict[str, str]]:
    """(PNG, caption) of every figure that has something to show, by key."""
    runs, colors = study_curves(study)
    shown_name = next(reversed(runs), "default")  # the rival, or the default where it stands alone
    shown = runs.get(shown_name)
    is_calm = shown is None or shown.timeline is None or not shown.timeline.preemptions.sum()
    drawings = {
        "objective": (
            draw_objective(study),
            "Objective of each trial. The line is the best so far among valid runs that keep every SLO limit; hollow "
            "marks miss a limit.",
        ),
        "tradeoff": (
            draw_tradeoff(study),
            "Latency against output throughput, one mark per complete trial. Better is lower and further right.",
        ),
        "effects": (
            draw_effects(study),
            "The objective against each parameter. Other parameters vary too, so read trends, not single points.",
        ),
        "importances": (
            draw_importances(study),
            "Share of the objective's variance that each parameter alone explains among the complete trials "
            "(adjusted R square). Parameters that vary together share what they explain: the shares need not add up.",
        ),
        "pair": (draw_pair(study), pair_in_words(study)),
        "cdfs": (
            draw_cdfs(runs, study.limits, colors),
            "Share of completed requests at or below each latency. Diamonds mark the share that an SLO limit requires: "
            "a curve that passes above its diamond keeps the limit.",
        ),
        "timeline": (
            None if shown is None else draw_timeline(shown),
            f"The run of {shown_name} over time: queue and batch, tokens per step, KV cache"
            + (". Nothing was preempted." if is_calm else ", preemptions."),
        ),
    }
    pictures = {key: png(figure) for key, (figure, _) in drawings.items() if figure is not None}
    return pictures, {key: drawings[key][1] for key in pictures}


def reproduction(directory: Path, study: StudyFacts) -> list[str]:
    """Commands that repeat the study from what lies in its folder."""
    lines = []
    commit = study.provenance.get("commit")
    if commit:
        lines.append(f"git checkout {commit}")
    command = ["workbench", "sweep", str(directory / SCENARIO_FILE)]
    if study.trials:
        command += ["--trials", str(sum(trial.state != "INFEASIBLE" for trial in study.trials))]
    if study.seed is not None:
        command += ["--seed", str(study.seed)]
    return [*lines, shlex.join(command)]


def scenario_yaml(resolved: Mapping[str, Any]) -> str:
    """The resolved scenario as a file that `workbench sweep` reads; what is unset is left out."""
    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(_without_none(resolved), stream)
    return stream.getvalue()


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, (list, tuple)) else value


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".writing-{path.name}-{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
