"""The analysis of a scenario: of the workload it generates, not of the files behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workbench.scenario import load_scenario
from workbench.services.analyze import Analysis
from workbench.services.describe import limits_of
from workbench.workload import generate_workload
from workbench.workload.analysis import ArrivalFigures, arrival_figures, length_figures, model_len_figures, thirds
from workbench.workload.records import Workload
from workbench.workload.sharing import SharingFigures, sharing_of_prompts

_MAX_PROMPT_TOKENS = 20_000_000
"""Sharing is not looked for in more: every prompt would have to be made."""


def analyze_scenario(path: Path, overrides: Sequence[str]) -> Analysis:
    """Raises `ScenarioError`, `ConfigError` or `ModelLoadError` for what could not run."""
    scenario = load_scenario(path, overrides)
    workload = generate_workload(scenario, limits_of(scenario))
    summary, source = workload.summary, workload.summary.source
    inputs, outputs = workload.num_prompt_tokens, workload.max_output_tokens
    times = workload.arrival_s if summary.span_s is not None else None
    sharing = _sharing(workload)
    notes = list(summary.describe())
    if sharing is None:
        notes.append(f"prefix sharing not looked for: over {_MAX_PROMPT_TOKENS} prompt tokens")
    return Analysis(
        path=str(path),
        format="scenario",
        account=summary.account,
        used=np.ones(len(workload), dtype=np.bool_),
        rows_are="requests",
        arrival_s=times,
        input_tokens=inputs,
        output_tokens=outputs,
        inputs=length_figures(inputs),
        outputs=length_figures(outputs),
        totals=length_figures(inputs, outputs),
        arrivals=ArrivalFigures() if times is None else arrival_figures(times, float(times[0])),
        thirds=thirds(times, inputs, outputs),
        sharing=sharing,
        model_len=model_len_figures(inputs, outputs),
        problems=source.problems if source is not None else (),
        notes=tuple(notes),
        fingerprint=workload.fingerprint,
    )


def _sharing(workload: Workload) -> SharingFigures | None:
    if int(workload.num_prompt_tokens.sum()) > _MAX_PROMPT_TOKENS:
        return None
    return sharing_of_prompts(workload.prompt_token_ids(row) for row in range(len(workload)))
