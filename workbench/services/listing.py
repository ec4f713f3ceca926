"""`workbench list`: what is stored below a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.report.quantities import label, shown, signed_share
from workbench.scenario import ScenarioError
from workbench.services.browse import RUNS_FOLDER, modified_s
from workbench.services.targets import split_params
from workbench.store.plans import read_plan
from workbench.store.runs import RUN_FILE, RunInfo, list_runs
from workbench.store.studies import STUDY_FILE, list_studies

_PLAN_SUFFIXES = (".yaml", ".yml", ".json")
_MAX_PLAN_BYTES = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One study, run or plan."""

    kind: str
    """`study`, `run` or `plan`."""
    name: str
    path: Path
    model: str | None = None
    gpu: str | None = None
    """With the count in front where several share the model; None where no GPU was named."""
    date: str | None = None
    """ISO 8601."""
    result: str | None = None
    """Gain or verdict, in words."""
    problem: str | None = None
    """Why it cannot be read, if it cannot."""

    def to_json(self) -> dict[str, Any]:
        """One element of `workbench list --json`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"path": str(self.path)}


def list_stored(folder: Path) -> tuple[Stored, ...]:
    """List studies, runs and plans below a folder, newest first within each kind.

    Raises `ScenarioError` where there is no such folder, `StoreError` where it cannot be read.
    """
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: is not a folder. Name the one given as --out, by default reports")
    found = []
    for kind in (_studies(folder), _runs(folder), _plans(folder)):
        found += sorted(kind, key=lambda each: each.date or "", reverse=True)
    return tuple(found)


def _studies(folder: Path) -> Iterator[Stored]:
    for entry in list_studies(folder):
        values = entry.values
        known: dict[str, Any] = {"kind": "study", "name": entry.directory.name, "path": entry.directory}
        if values is None or not isinstance(values.get("scenario_resolved"), dict):
            yield Stored(
                **known, problem=entry.problem or "has no scenario_resolved. Was it written by another version?"
            )
            continue
        scenario = values["scenario_resolved"]
        yield Stored(
            **known,
            model=scenario.get("model"),
            gpu=_gpu(scenario, (values.get("best") or {}).get("params") or {}),
            date=_date(entry.directory / STUDY_FILE),
            result=_gain(values),
        )


def _gain(values: Mapping[str, Any]) -> str:
    best, gain = values.get("best"), values.get("gain")
    num_trials = f"{len(values.get('trials') or ())} trials"
    if best is None:
        return f"{num_trials}, no winner"
    if best.get("number") == 0:
        return f"{num_trials}, the default is the best"
    winner = f"{num_trials}, trial {best.get('number')} is the best"
    if (values.get("confirmation") or {}).get("doubt") or not gain:
        return f"{winner}, not confirmed"
    span = f"{signed_share(gain['low'])} to {signed_share(gain['high'])}"
    return f"{winner}: {label(str(values.get('objective')))} {signed_share(gain['value'])} ({span})"


def _runs(folder: Path) -> Iterator[Stored]:
    for parent in (folder, folder / RUNS_FOLDER):
        for entry in list_runs(parent):
            known: dict[str, Any] = {"kind": "run", "name": entry.directory.name, "path": entry.directory}
            if entry.info is not None:
                info = entry.info
                gpu = _gpu(info.scenario, info.params)
                yield Stored(
                    **known, model=info.scenario.get("model"), gpu=gpu, date=info.created_at, result=_verdict(info)
                )
            elif (entry.directory / RUN_FILE).exists():  # other folders are none of ours
                yield Stored(**known, problem=entry.problem)


def _verdict(info: RunInfo) -> str:
    metrics = info.metrics or {}
    name = "slo_attainment" if metrics.get("slo_attainment") is not None else "output_tokens_per_s"
    return f"{info.verdict or info.failure}, {label(name)} {shown(name, metrics.get(name))}"


def _plans(folder: Path) -> Iterator[Stored]:
    for path in sorted(folder.iterdir()):
        if path.suffix not in _PLAN_SUFFIXES or not path.is_file() or path.stat().st_size > _MAX_PLAN_BYTES:
            continue
        try:
            plan = read_plan(path, ("deployment",))
        except ScenarioError:
            continue  # a scenario, or a file of something else
        deployment, replicas = plan["deployment"], plan.get("replicas") or {}
        if isinstance(deployment, dict) and isinstance(replicas, dict):
            needed = replicas.get("minimum", deployment.get("replicas"))
            yield Stored(
                kind="plan",
                name=path.name,
                path=path,
                model=deployment.get("model"),
                gpu=_gpu({"target": deployment}, {}),
                date=_date(path),
                result=f"{needed} replica{'s' if needed != 1 else ''}",
            )


def _gpu(scenario: Mapping[str, Any], params: Mapping[str, Any]) -> str | None:
    target = {**(scenario.get("target") or {}), **split_params(params)[0]}
    gpu, count = target.get("gpu"), target.get("tensor_parallel_size") or 1
    if gpu is None:
        return target.get("kind")
    return f"{count} x {gpu}" if count > 1 else str(gpu)


def _date(path: Path) -> str:
    return datetime.fromtimestamp(modified_s(path)).astimezone().isoformat(timespec="seconds")
