"""Default against best, side by side: the tables at the head of a report."""

from __future__ import annotations

from workbench.metrics.statistics import min_samples
from workbench.metrics.summary import LATENCY_METRICS
from workbench.report.document import Cell, Table, Tone
from workbench.report.facts import StudyFacts, TrialFacts
from workbench.report.quantities import (
    DASH,
    RATES,
    label,
    limit,
    num_samples,
    number,
    parameter,
    parameter_label,
    share,
    shown,
    signed_share,
    unit,
    value_of,
)

HEADLINES = (
    "goodput_rps",
    "slo_attainment",
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    *(f"{head}.{statistic}" for head in LATENCY_METRICS[:4] for statistic in ("p50", "p95", "p99")),
    "queue_s.p50",
    "queue_s.p95",
    "num_requests",
    "num_failed",
    "num_preemptions",
    "kv_usage_mean",
    "kv_usage_max",
    "prefix_hit_rate",
)
"""Figures of the comparison, the objective before them."""
TOO_FEW = "†"


def parameter_table(study: StudyFacts) -> Table:
    """Searched parameters of default and rival."""
    columns = study.compared
    rows: list[list[Cell | str]] = []
    for name in study.space:
        values = [trial.params.get(name) for _, trial in columns]
        changed = any(value != values[0] for value in values)
        cells: list[Cell | str] = [parameter(values[0])] if values else []
        cells += [Cell(text=parameter(value), tone="strong" if changed else "plain") for value in values[1:]]
        rows.append([parameter_label(name), *cells])
    return Table(header=["Parameter", *(name for name, _ in columns)], rows=rows)


def metric_table(study: StudyFacts) -> Table:
    """Figures of default and rival with their change and sample counts."""
    columns = study.compared
    trials = [trial for _, trial in columns]
    rows: list[list[Cell | str]] = []
    for name in dict.fromkeys([study.objective, *HEADLINES]):
        values = [trial.value(name) for trial in trials]
        if all(value is None for value in values):
            continue
        what = Cell(text=f"{label(name)} (objective)", tone="strong") if name == study.objective else label(name)
        figures = [_figure(trial, name, value) for trial, value in zip(trials, values, strict=True)]
        change = [_change(name, values[0], values[1])] if len(values) == 2 else []
        rows.append([what, *figures, *change, Cell(text=_samples(trials, name), tone="dim")])
    change_column = ["change"] if len(columns) == 2 else []
    return Table(header=["Figure", *(name for name, _ in columns), *change_column, "samples"], rows=rows)


def class_table(study: StudyFacts) -> Table | None:
    """The main figures per class; None where there is only one."""
    runs = {name: study.runs.get(trial.number) for name, trial in study.compared}
    known = {name: run for name, run in runs.items() if run is not None and len(run.classes) > 1}
    if not known:
        return None
    classes = list(dict.fromkeys(kind for run in known.values() for kind in run.classes))
    names = ("slo_attainment", "ttft_s.p50", "ttft_s.p95", "tpot_s.p50", "tpot_s.p95", "e2el_s.p95")
    rows = []
    for kind in classes:
        for column, run in known.items():
            metrics = run.classes.get(kind)
            count = value_of(metrics, "num_requests")
            figures = [shown(name, value_of(metrics, name)) for name in names]
            rows.append([kind, column, number(None if count is None else int(count)), *figures])
    header = ["Class", "Configuration", "requests", *(label(name) for name in names)]
    return Table(header=header, rows=rows, left=frozenset({0, 1}), is_dense=True)


def repeat_table(study: StudyFacts) -> Table | None:
    """The runs that the stated gain rests on."""
    before, after = study.repeats.get("default", ()), study.repeats.get("best", ())
    if not before or not after:
        return None
    rows = []
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        ratio = None if one <= 0 else (other / one - 1 if study.maximize else 1 - other / one)
        rows.append([f"{index + 1}", shown(study.objective, one), shown(study.objective, other), signed_share(ratio)])
    return Table(header=["Repeat", "default", study.rival_name, "gain"], rows=rows)


def limit_table(study: StudyFacts) -> Table | None:
    """Which limits default and rival kept."""
    rows: list[list[Cell | str]] = []
    columns = [trial for _, trial in study.compared]
    for key, (limit_s, required, by_trial) in _limits(study, columns).items():
        cells = [_kept(by_trial.get(trial.number), required) for trial in columns]
        is_part = key.startswith("  ")
        text = f"  ↳ class {key.strip().partition('@')[0]}" if is_part else key
        rows.append([text, "" if is_part else f"≤ {limit(limit_s)}", "" if is_part else share(required), *cells])
    if not rows:
        return None
    names = [name for name, _ in study.compared]
    return Table(header=["Limit", "value", "required share of requests", *names], rows=rows)


def _limits(study: StudyFacts, trials: list[TrialFacts]) -> dict[str, tuple[float, float, dict[int, float | None]]]:
    """Row -> (limit in seconds, required share, trial number -> share that kept it), with parts per class."""
    found: dict[str, tuple[float, float, dict[int, float | None]]] = {}
    for trial in trials:
        run = study.runs.get(trial.number)
        if run is None or not run.limits:
            for name, shortfall in trial.constraints.items():
                limit_s, required = study.limits.get(name, (float("nan"), float("nan")))
                found.setdefault(name, (limit_s, required, {}))[2][trial.number] = required - shortfall
            continue
        for one in run.limits:
            name = one.name if not one.classes else f"{one.name} ({', '.join(one.classes)})"
            found.setdefault(name, (one.limit_s, one.required, {}))[2][trial.number] = one.achieved
            for kind, achieved in one.by_class.items():
                found.setdefault(f"  {kind}@{name}", (one.limit_s, one.required, {}))[2][trial.number] = achieved
    return found


def _kept(achieved: float | None, required: float) -> Cell:
    if achieved is None:
        return Cell(text=DASH)
    is_met = achieved >= required
    return Cell(text=f"{share(achieved)} {'✓' if is_met else '✗'}", tone="good" if is_met else "bad")


def _figure(trial: TrialFacts, name: str, value: float | None) -> str:
    head, _, statistic = name.partition(".")
    count = num_samples(trial.metrics, name)
    is_thin = statistic.startswith("p") and count is not None and 0 < count < min_samples(float(statistic[1:]))
    return shown(head if statistic else name, value) + (f" {TOO_FEW}" if is_thin else "")


def _change(name: str, before: float | None, after: float | None) -> Cell:
    if before is None or after is None or before <= 0 or name in ("num_requests", "num_failed", "prefix_hit_rate"):
        return Cell(text="")
    change = after / before - 1
    head = name.partition(".")[0]
    if name == "num_preemptions":
        return Cell(text=f"{after - before:+,.0f}")
    if unit(name) == "%":  # a share: the difference says more than the ratio of two percentages
        points = f"{(after - before) * 100:+.1f} points"
        tone: Tone = "plain" if head not in RATES or after == before else "good" if after > before else "bad"
        return Cell(text=points, tone=tone)
    if head not in (*RATES, *LATENCY_METRICS) or abs(change) < 0.01:
        return Cell(text=signed_share(change))
    is_better = (change > 0) == (head in RATES)
    return Cell(text=signed_share(change), tone="good" if is_better else "bad")


def _samples(trials: list[TrialFacts], name: str) -> str:
    counts = [num_samples(trial.metrics, name) for trial in trials]
    known = [f"{count:,}" for count in counts if count is not None]
    return known[0] if len(set(known)) == 1 else " / ".join(known)
