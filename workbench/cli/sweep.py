"""Progress and result of a sweep in the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from workbench.cli.console import err, limit_in_words, metric, number, out, params, show_doubts, write
from workbench.cli.progress import TrialProgress
from workbench.cli.signals import sigterm_as_interrupt
from workbench.report.rate_words import RATE, gap_in_words
from workbench.scenario import Scenario, ScenarioError
from workbench.scenario.base import parse_duration
from workbench.scenario.search import RATE_OBJECTIVES
from workbench.search.confirmation import Confirmation
from workbench.search.outcome import TrialState
from workbench.search.study import TrialRecord
from workbench.services.report import write_report
from workbench.services.sweep import SweepEvents, run_sweep
from workbench.services.sweep_result import SweepResult
from workbench.workload.account import ImportAccount

_SHOWN = (
    "goodput_rps",
    "slo_attainment",
    "output_tokens_per_s",
    "ttft_s.p50",
    "ttft_s.p95",
    "tpot_s.p50",
    "tpot_s.p95",
    "num_preemptions",
    "kv_usage_max",
)


def sweep_command(
    loaded: Scenario,
    *,
    trials: int | None,
    seed: int | None,
    parent: Path,
    resume: bool,
    storage: str | None,
    artifacts: Path | None,
    workers: int,
    budget: str | None,
    as_json: bool,
) -> None:
    objective = loaded.search.objective if loaded.search is not None else ""
    progress = TrialProgress()
    confirm = None if loaded.search is None else loaded.search.confirm.target
    is_simulated = (confirm or loaded.target).kind == "simulated"
    again = "simulating default and winner again" if is_simulated else "confirming default and finalists"

    def on_start(directory: Path, done: int, total: int) -> None:
        have = f", {done} already there" if done else ""
        err.print(f"study {directory.name}: {total} trials{have}, objective {objective}")
        progress.begin(done, total)
        if storage is not None:
            err.print(f"others join with: workbench worker --study {directory.name} --storage URL", markup=False)

    def on_wait(num_open: int) -> None:
        err.print(f"waiting for {num_open} trials that others work on", markup=False)

    def on_confirm(done: int, total: int) -> None:
        err.print(f"{again}: run {done} of {total}")

    def on_trial(record: TrialRecord) -> None:
        render_trial(record, objective)
        progress.advance()

    show_doubts(loaded)
    with sigterm_as_interrupt(), progress:
        events = SweepEvents(
            on_start=on_start,
            on_trial=on_trial,
            on_wait=on_wait,
            on_confirm=on_confirm,
        )
        result = run_sweep(
            loaded,
            out=parent,
            trials=trials,
            seed=seed,
            resume=resume,
            storage=storage,
            artifacts=artifacts,
            workers=workers,
            budget_s=None if budget is None else _seconds(budget),
            events=events,
        )
    paths = write_report(result.directory)
    if as_json:
        from workbench.cli.main import print_json

        print_json(result.to_json())
    else:
        render(result, paths["html"])
    if result.stopped is not None:
        err.print(f"stopped early: {result.stopped}", markup=False)
    if result.is_cut_short:
        raise SystemExit(1)


def _seconds(text: str) -> float:
    try:
        value = parse_duration(text)
    except ValueError:
        value = None
    if not isinstance(value, float) or not 0 < value < float("inf"):
        raise ScenarioError(f"--budget: must be a duration such as 90s, 30m or 2h (got {text})")
    return value


def render_trial(record: TrialRecord, objective: str) -> None:
    """One line of progress."""
    outcome = record.outcome
    value = metric(objective, outcome.objective) if outcome.objective is not None else outcome.state.value
    if outcome.objectives is not None and outcome.objective is not None:
        value = "  ".join(metric(name, each) for name, each in outcome.objectives.items())
    missed = [name for name, shortfall in outcome.constraints.items() if shortfall > 0]
    remarks = [f"misses {', '.join(missed)}"] if missed else []
    if outcome.rate and outcome.rate.get("is_coarse"):
        remarks.append("coarse: does not beat the best so far")
    if outcome.verdict not in (None, "VALID"):
        remarks.append(str(outcome.verdict))
    if outcome.reason:
        remarks.append(outcome.reason.splitlines()[0])
    tail = f"  [{'; '.join(remarks)}]" if remarks else ""
    took = f"{outcome.duration_s:5.1f} s" if outcome.duration_s is not None else ""
    err.print(f"trial {record.number:3d}  {value:>12}  {took}  {params(record.params)}{tail}", markup=False)


def render(result: SweepResult, report: Path) -> None:
    """Print what the study rests on, the answer, what to type next, the limits, the evidence."""
    values = result.to_json()
    write(result.basis.sentence)
    write(f"Answer: {values['conclusion']}")
    if result.best is not None:
        out.print()
        write(f"Parameters      trial {result.best.number}: {params(result.best.params)}", indent=16)
        if values["serve_command"] is not None:
            write(f"Serve           {values['serve_command']}", indent=16)
        write(f"Export          workbench export {result.directory} --format vllm-args", indent=16)
    for limit in values["limits"]:
        write(f"Limit           {limit_in_words(limit)}", indent=16)
    if values["requests"] is not None:
        write(f"Requests        {ImportAccount(**values['requests']).describe()}", indent=16)
    out.print()
    out.print(_compared(result))
    if result.confirmation is not None and result.confirmation.finalists:
        out.print(_predictions(result, result.confirmation))
        _print_result(result.search.objective, result.confirmation)
    write(f"report: {report}")


def _compared(result: SweepResult) -> Table:
    """Best against default, side by side."""
    infeasible = sum(record.outcome.state is TrialState.INFEASIBLE for record in result.records)
    counted = f"{len(result.records)} trials" + (f", {infeasible} of them infeasible" if infeasible else "")
    table = Table(title=f"{result.scenario.name}: {counted}", title_justify="left")
    table.add_column("")
    table.add_column("default", justify="right")
    found = "knee" if result.search.is_pareto else "best"
    table.add_column(found if result.best is None else f"{found} (trial {result.best.number})", justify="right")
    default, best = result.default, result.best
    for name in result.search.space:
        table.add_row(
            name,
            number(default.params[name]) if default else "–",
            number(best.params[name]) if best else "–",
        )
    table.add_section()
    objective = result.search.objective
    if objective not in _SHOWN and not result.search.is_pareto:
        table.add_row(objective, _objective(result, default), _objective(result, best))
    for title, words in (("  shown not to hold at", _failed_rate), ("  between the two", _gap)):
        if objective in RATE_OBJECTIVES:
            table.add_row(title, words(default), words(best))
    for name in _SHOWN:
        table.add_row(name, _value(default, name), _value(best, name))
    return table


def _predictions(result: SweepResult, confirmation: Confirmation) -> Table:
    """Set what the search had of each finalist against what came of the repeats."""
    name, is_simulated = result.search.objective, confirmation.target == "simulated"
    again = "again, with other seeds" if is_simulated else "measured"
    title = f"{name}: simulated {again}" if is_simulated else f"{name}: predicted against measured"
    table = Table(title=f"{title} ({confirmation.target})", title_justify="left")
    for header in ("trial", "predicted", again, "difference" if is_simulated else "error"):
        table.add_column(header, justify="right")
    table.add_column("")
    rows = [] if confirmation.default is None else [confirmation.default]
    rows += [each for each in confirmation.finalists if each.record.number != 0]
    for each in rows:
        is_winner = confirmation.winner is not None and each.record.number == confirmation.winner.number
        table.add_row(
            f"{each.record.number}" + (" (default)" if each.record.number == 0 else ""),
            metric(name, each.record.outcome.objective),
            ", ".join("–" if value is None else metric(name, value) for value in each.measured),
            "–" if each.error is None else f"{each.error:+.1%}",
            "winner" if is_winner else each.doubt or "",
        )
    return table


def _print_result(objective: str, confirmation: Confirmation) -> None:
    found, winner = confirmation.result, confirmation.winner
    if found is not None and winner is not None:
        value, low, high = (metric(objective, each) for each in (found.value, found.low, found.high))
        how = "predicted" if confirmation.target == "simulated" else "measured"
        write(f"trial {winner.number} {how}: {value} (95% interval {low} to {high}, scatter of the errors included)")


def _objective(result: SweepResult, record: TrialRecord | None) -> str:
    """What the search compared; a rate found by several runs is no figure of any one of them."""
    return metric(result.search.objective, None if record is None else record.outcome.objective)


def _failed_rate(record: TrialRecord | None) -> str:
    rate = {} if record is None else record.outcome.rate or {}
    return metric(RATE, rate.get("failed"))


def _gap(record: TrialRecord | None) -> str:
    return "–" if record is None or not record.outcome.rate else gap_in_words(record.outcome.rate)


def _value(record: TrialRecord | None, name: str) -> str:
    if record is None or record.outcome.metrics is None:
        return "–"
    head, _, statistic = name.partition(".")
    value = record.outcome.metrics[head]
    if statistic:
        value = None if value is None else value[statistic]
    return metric(name, value)
