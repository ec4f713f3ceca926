"""`workbench compare`: two runs or studies, what differs between them and in which figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import engine_field_names
from workbench.metrics.attainment import SloPolicy
from workbench.metrics.summary import LATENCY_METRICS, SCALAR_METRICS
from workbench.metrics.uncertainty import Interval, gain_interval
from workbench.metrics.windows import Window
from workbench.report.quantities import RATES, value_of
from workbench.scenario import Scenario, ScenarioError
from workbench.services.report import find_run, find_study
from workbench.services.targets import split_params
from workbench.store.errors import StoreError
from workbench.store.runs import RUN_FILE, StoredRun, load_run
from workbench.store.studies import STUDY_FILE, load_study

_STATISTICS = ("mean", "p50", "p95", "p99")
_NOT_PARAMETERS = ("name", "description", "search", "version", "engine", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One side of a comparison: a run, or a study by its best trial."""

    name: str
    kind: str
    """`run` or `study`."""
    trial: int | None
    """Of a study: which trial stands for it."""
    parameters: Mapping[str, Any]
    """Dotted keys of scenario and resolved engine."""
    metrics: Mapping[str, Any]
    verdict: str | None
    conclusion: str | None
    """Of a study."""
    objective: str | None
    objective_value: float | None
    repeats: tuple[float, ...]
    """Objective of each confirming run."""
    run: StoredRun | None
    """None where the trial's run is not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of both sides."""

    name: str
    a: float | None
    b: float | None
    relative: float | None
    """b / a - 1."""
    low: float | None = None
    high: float | None = None
    """95 % interval of `relative`; None where neither requests nor repeats give one."""
    better: str | None = None
    """`A` or `B`; None where the interval holds 0 or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs between two runs or studies."""

    a: Subject
    b: Subject
    parameters: tuple[tuple[str, Any, Any], ...]
    """(name, of A, of B), those that differ."""
    metrics: tuple[Difference, ...]
    notes: tuple[str, ...]
    """What makes the comparison unfair, and where its intervals come from."""

    def to_json(self) -> dict[str, Any]:
        """The object of `workbench compare --json`."""
        names = ("name", "kind", "trial", "verdict", "conclusion")
        return {
            **{side: {name: getattr(one, name) for name in names} for side, one in (("a", self.a), ("b", self.b))},
            "parameters": [{"name": name, "a": a, "b": b} for name, a, b in self.parameters],
            "metrics": [asdict(each) for each in self.metrics],
            "notes": list(self.notes),
        }


def compare(a: Path, b: Path) -> Comparison:
    """Compare two stored runs or studies. Raises `ScenarioError` for what is neither, `StoreError`."""
    one, other = _read(a), _read(b)
    return Comparison(
        a=one,
        b=other,
        parameters=tuple(_differing(one.parameters, other.parameters)),
        metrics=tuple(_differences(one, other)),
        notes=tuple(_notes(one, other)),
    )


def _read(path: Path) -> Subject:
    folder = path.parent if path.name in (STUDY_FILE, RUN_FILE) else path
    try:
        study = find_study(folder)
    except ScenarioError:
        try:
            return _run_subject(load_run(find_run(folder)), folder.name)
        except ScenarioError:
            raise ScenarioError(
                f"{path}: is neither a run nor a study. `workbench list` shows what is stored below reports/"
            ) from None
    return _study_subject(study)


def _run_subject(run: StoredRun, name: str) -> Subject:
    return Subject(
        name=name,
        kind="run",
        trial=None,
        parameters=_parameters(run.info.scenario, run.info.params, run.record.engine),
        metrics=run.info.metrics or {},
        verdict=run.info.verdict,
        conclusion=None,
        objective=None,
        objective_value=None,
        repeats=(),
        run=run,
    )


def _study_subject(directory: Path) -> Subject:
    """By its winner, or the default where nothing won."""
    study = load_study(directory)
    trials = {trial["number"]: trial for trial in study.get("trials") or ()}
    best = study.get("best")
    number = 0 if best is None else best["number"]
    trial = trials.get(number)
    if trial is None or trial.get("metrics") is None:
        raise ScenarioError(f"{directory}: has no trial with a result to compare. {study.get('conclusion') or ''}")
    original = trial.get("duplicate_of")
    try:
        run = load_run(directory / f"trial-{number if original is None else original:04d}")
    except StoreError:
        run = None
    return Subject(
        name=directory.name,
        kind="study",
        trial=number,
        parameters=_parameters(
            study.get("scenario_resolved") or {}, trial["params"], {} if run is None else run.record.engine
        ),
        metrics=trial["metrics"],
        verdict=trial.get("verdict"),
        conclusion=study.get("conclusion"),
        objective=study.get("objective"),
        objective_value=trial.get("objective"),
        repeats=tuple((study.get("repeats") or {}).get("default" if best is None else "best") or ()),
        run=run,
    )


def _parameters(scenario: Mapping[str, Any], params: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was chosen, under dotted keys; absent values left out."""
    device, engine_params = split_params(params)
    known = {name: value for name, value in engine.items() if name in engine_field_names() and name != "model"}
    stated = {**known, **(scenario.get("engine") or {}), **engine_params}
    parts = {name: value for name, value in scenario.items() if name not in _NOT_PARAMETERS}
    return dict(_flat({**parts, "engine": stated, "target": {**(scenario.get("target") or {}), **device}}))


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, list):
            item = {str(index): each for index, each in enumerate(item)}
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{name}.")
        elif item is not None:
            yield f"{prefix}{name}", item


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys((*a, *b)):
        if a.get(name) != b.get(name):
            yield name, a.get(name), b.get(name)


def _differences(a: Subject, b: Subject) -> Iterator[Difference]:
    objective = a.objective or b.objective
    if objective is not None and a.objective in (None, objective) and b.objective in (None, objective):
        values = [each.objective_value or value_of(each.metrics, objective) for each in (a, b)]
        yield _difference(objective, values[0], values[1], _interval_of_repeats(a.repeats, b.repeats))
    heads = [f"{head}.{statistic}" for head in LATENCY_METRICS for statistic in _STATISTICS]
    for name in (*SCALAR_METRICS, *heads):
        before, after = value_of(a.metrics, name), value_of(b.metrics, name)
        if name != objective and (before is not None or after is not None):
            yield _difference(name, before, after, _interval_of_requests(a, b, name))


def _difference(name: str, a: float | None, b: float | None, interval: Interval | None) -> Difference:
    relative = None if a is None or b is None or a == 0 else b / a - 1.0
    better = None
    if relative and interval is not None and interval.excludes_zero:
        better = "B" if (relative > 0) == (name in RATES) else "A"
    return Difference(
        name=name,
        a=a,
        b=b,
        relative=relative,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        better=better,
    )


def _interval_of_repeats(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Welch's interval on the logarithms: the repeats of two studies are not pairs."""
    if min(len(a), len(b)) < 2 or min((*a, *b)) <= 0:
        return None
    from scipy.stats import ttest_ind  # slow to import and needed here only

    logs = np.log(a), np.log(b)
    center = float(logs[1].mean() - logs[0].mean())
    if not (logs[0].std() or logs[1].std()):
        return Interval(value=float(np.expm1(center)), low=float(np.expm1(center)), high=float(np.expm1(center)))
    found = ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval()
    return Interval(value=float(np.expm1(center)), low=float(np.expm1(found.low)), high=float(np.expm1(found.high)))


def _interval_of_requests(a: Subject, b: Subject, name: str) -> Interval | None:
    """From both runs' requests, resampled in blocks; what differs from run to run is not in it."""
    if a.run is None or b.run is None:
        return None
    try:
        policy = SloPolicy.from_scenario(Scenario.model_validate(dict(b.run.info.scenario)))
        return gain_interval(
            a.run.record, b.run.record, name, maximize=True, policy=policy, windows=(_window(a.run), _window(b.run))
        )
    except (KeyError, ValueError):  # no figure of requests, or a scenario of another version
        return None


def _window(run: StoredRun) -> Window | None:
    span = run.info.window_s
    return None if span is None else Window(start_s=span[0], end_s=span[1])


def _notes(a: Subject, b: Subject) -> Iterator[str]:
    if a.run is not None and b.run is not None:
        if a.run.info.workload_fingerprint != b.run.info.workload_fingerprint:
            yield "the requests or their times differ: part of any difference is the load's"
        if a.run.record.clock != b.run.record.clock:
            clocks = ", ".join(f"{each.name} on a {each.run.record.clock} clock" for each in (a, b) if each.run)
            yield f"one side is simulated, the other measured ({clocks}): the model's error is part of any difference"
        yield "intervals: 95 %, from the requests of one run each; what differs from run to run is not in them"
    if min(len(a.repeats), len(b.repeats)) >= 2:
        yield f"interval of {a.objective}: 95 %, from {len(a.repeats)} and {len(b.repeats)} repeats"
    for side, one in (("A", a), ("B", b)):
        if one.verdict != "VALID":
            yield f"{side} is {one.verdict or 'without a verdict'}: its figures cannot be trusted"
