"""From the contents of `study.json` to facts; tolerant of what older or cut-short studies lack."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.records.basis import Basis
from workbench.report.facts import DimensionFacts, GainFacts, InteractionFacts, RunFacts, StudyFacts, TrialFacts

_ATTAINMENT_TARGET = 0.99


def study_facts(
    name: str,
    values: Mapping[str, Any],
    *,
    runs: Mapping[int, RunFacts] | None = None,
    identical: Sequence[str] = (),
    importances: Mapping[str, float] | None = None,
    interactions: Sequence[InteractionFacts] | None = None,
    problems: Sequence[str] = (),
) -> StudyFacts:
    """The facts of a stored study. `values` is the object of `workbench sweep --json`."""
    runs = runs or {}
    objective = str(values.get("objective") or "objective")
    trials = tuple(_with_objective(trial_facts(trial), objective) for trial in values.get("trials") or ())
    resolved = values.get("scenario_resolved") or {}
    search = resolved.get("search") or {}
    best = (values.get("best") or {}).get("number")
    first_run = next((runs[number] for number in sorted(runs)), None)
    seeds = (values.get("seed"), search.get("seed"), resolved.get("seed"))
    return StudyFacts(
        name=name,
        scenario=str(values.get("scenario") or name),
        description=str(resolved.get("description") or ""),
        objective=objective,
        maximize=values.get("direction", "maximize") == "maximize",
        conclusion=str(values.get("conclusion") or "The study has no conclusion yet."),
        trials=trials,
        default=next((trial for trial in trials if trial.number == 0), None),
        best=next((trial for trial in trials if trial.number == best), None) if best is not None else None,
        gain=_gain(values.get("gain")),
        repeats={key: tuple(found) for key, found in (values.get("repeats") or {}).items()},
        limits=limits_of(values.get("slo") or {}),
        space=_space(values, trials),
        stopped=values.get("stopped"),
        identical=tuple(identical),
        runs=runs,
        problems=tuple(problems),
        importances=importances,
        interactions=interactions,
        provenance={} if first_run is None else first_run.provenance,
        seed=next((seed for seed in seeds if seed is not None), None),
        scenario_resolved=resolved,
        created_at=None if first_run is None else first_run.created_at,
        pareto=values.get("pareto"),
        confirmation=values.get("confirmation"),
        requests=values.get("requests"),
        basis=Basis(**values["basis"]).sentence if values.get("basis") else "",
        serve_command=values.get("serve_command"),
    )


def trial_facts(values: Mapping[str, Any]) -> TrialFacts:
    """One element of `trials`."""
    objective = values.get("objective")
    metrics, binding = values.get("metrics"), values.get("binding")
    return TrialFacts(
        number=int(values["number"]),
        state=str(values["state"]),
        params=dict(values.get("params") or {}),
        metrics=None if metrics is None else dict(metrics),
        verdict=values.get("verdict"),
        reason=values.get("reason"),
        objective=objective if objective is not None and math.isfinite(objective) else None,
        constraints=dict(values.get("constraints") or {}),
        duration_s=values.get("duration_s"),
        fingerprint=values.get("decision_fingerprint"),
        binding=None if binding is None else dict(binding),
        run=values.get("run"),
        rate=values.get("rate"),
        limits=tuple(values.get("limits") or ()),
    )


def _with_objective(trial: TrialFacts, name: str) -> TrialFacts:
    """An objective that no single run measures (a sustainable rate) is a figure of the trial like its metrics."""
    if trial.metrics is None or trial.objective is None or trial.value(name) is not None:
        return trial
    return replace(trial, metrics={**trial.metrics, name: trial.objective})


def limits_of(slo: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """`{"ttft_p95": 0.2}` -> `{"ttft_p95": (0.2, 0.95)}`; a limit without percentile has the attainment target."""
    target = slo.get("attainment_target") or _ATTAINMENT_TARGET
    found = {}
    for name, limit in slo.items():
        if name == "attainment_target" or limit is None:
            continue
        statistic = name.rpartition("_")[2]
        required = 1.0 if statistic in ("max", "mean") else float(target)
        if re.fullmatch(r"p\d+(\.\d+)?", statistic):
            required = float(statistic[1:]) / 100
        found[name] = (float(limit), required)
    return found


def _gain(values: Mapping[str, Any] | None) -> GainFacts | None:
    if values is None or any(values.get(key) is None for key in ("value", "low", "high")):
        return None
    return GainFacts(value=values["value"], low=values["low"], high=values["high"])


def _space(values: Mapping[str, Any], trials: Sequence[TrialFacts]) -> dict[str, DimensionFacts]:
    space = values.get("space")
    if not space:  # a study of another version: all that is known is what was tried
        return {name: DimensionFacts() for name in (trials[0].params if trials else {})}
    return {
        name: DimensionFacts(
            log=bool(one.get("log")),
            choices=None if one.get("choices") is None else tuple(one["choices"]),
            low=one.get("low"),
            high=one.get("high"),
        )
        for name, one in space.items()
    }
