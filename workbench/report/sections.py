"""What a study's report says, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.report.comparison import (
    TOO_FEW,
    class_table,
    limit_table,
    metric_table,
    parameter_table,
    repeat_table,
)
from workbench.report.document import Block, Bullets, Cell, Code, Heading, Paragraph, Picture, Table
from workbench.report.facts import LimitFacts, StudyFacts, TrialFacts
from workbench.report.quantities import CAUSES, DASH, label, number, parameter, share, shown, signed_share
from workbench.report.search_sections import front_blocks, prediction_blocks, rate_blocks
from workbench.workload.account import ImportAccount

_USUAL_SPREAD = 0.25
"""Runs of one configuration that differ by less (relative to their range) are nothing unusual."""
_TRIAL_FIGURES = ("output_tokens_per_s", "ttft_s.p95", "tpot_s.p95")


def report_blocks(study: StudyFacts, captions: Mapping[str, str], command: Sequence[str]) -> list[Block]:
    """The whole report. `captions` are those of the figures that exist, by key."""
    return [
        *_head(study),
        *_comparison(study),
        *rate_blocks(study),
        *front_blocks(study),
        *prediction_blocks(study),
        *_limits_and_verdicts(study),
        *_binding(study),
        *_pictures("Trials", captions, ("objective", "tradeoff", "effects", "importances", "pair")),
        *_pictures("Default and best, request by request", captions, ("cdfs", "timeline")),
        *_trials(study),
        *_provenance(study, command),
    ]


def _head(study: StudyFacts) -> Iterator[Block]:
    yield Heading(text=f"Tuning report: {study.scenario}", level=1)
    if study.basis:
        yield Paragraph(text=study.basis, kind="note")
    yield Paragraph(text=study.conclusion, kind="lead")
    if study.stopped:
        yield Paragraph(text=f"This study ended early: {study.stopped}", kind="warning")
    counts = [f"{study.count('COMPLETE')} complete"]
    counts += [
        f"{study.count(state)} {state.lower()}" for state in ("INFEASIBLE", "FAILED", "PRUNED") if study.count(state)
    ]
    aims = [(study.objective, "maximize" if study.maximize else "minimize")]
    aims = list(((study.pareto or {}).get("objectives") or {}).items()) or aims
    aim = ", ".join(f"{label(name)} ({'higher' if up == 'maximize' else 'lower'} is better)" for name, up in aims)
    trials = "1 trial" if len(study.trials) == 1 else f"{len(study.trials)} trials"
    what = f"{trials}: {', '.join(counts)}. {'Objectives' if len(aims) > 1 else 'Objective'}: {aim}."
    if study.requests is not None:
        what += f" Requests: {ImportAccount(**study.requests).describe()}."
    yield from winner_blocks(study)
    yield Paragraph(text=f"{study.description} {what}".strip())
    for problem in study.problems:
        yield Paragraph(text=problem, kind="warning")


def winner_blocks(study: StudyFacts) -> Iterator[Block]:
    """What to deploy: parameters, the command that starts them, the one that exports them; then the limits."""
    if study.best is None:
        return
    values = ", ".join(f"{name} {number(value)}" for name, value in study.best.params.items())
    yield Paragraph(text=f"Deploy trial {study.best.number}: {values}.")
    commands = [f"workbench export {study.name} --format vllm-args"]
    if study.serve_command is not None:
        commands.insert(0, study.serve_command)
    yield Code(text="\n".join(commands))
    if study.best.limits:
        yield Bullets(items=[limit_in_words(limit) for limit in study.best.limits])


def limit_in_words(limit: Mapping[str, Any]) -> str:
    """Echo a limit with its value, the share reached and the share required."""
    value = DASH if limit["value_s"] is None else shown("ttft_s", limit["value_s"])
    return (
        f"{limit['name']} {shown('ttft_s', limit['limit_s'])}: {value}; {share(limit['share_reached'])} of the "
        f"requests keep it, {share(limit['share_required'])} must"
    )


def limit_line(limit: LimitFacts) -> str:
    """Echo a limit of one run, with the classes that it binds."""
    classes = f" ({', '.join(limit.classes)})" if limit.classes else ""
    return (
        f"{limit.name} {shown('ttft_s', limit.limit_s)}{classes}: {share(limit.achieved)} of the requests keep it, "
        f"{share(limit.required)} must"
    )


def _comparison(study: StudyFacts) -> Iterator[Block]:
    yield Heading(text="Best against default")
    if study.default is None and study.rival is None:
        yield Paragraph(text="No trial has ended yet.")
        return
    if study.best is None and study.nearest_miss is not None:
        shown_beside = (
            "The default misses the limits least."
            if len(study.compared) == 1
            else "The default is shown beside the trial that misses the limits least."
        )
        yield Paragraph(text=f"No trial keeps every SLO limit in a valid run, so there is no best. {shown_beside}")
    elif len(study.compared) == 1:
        text = "The default is what to deploy." if len(study.trials) > 1 else "There is no other trial to compare with."
        yield Paragraph(text=text)
    yield parameter_table(study)
    yield from _confirmation(study)
    figures = metric_table(study)
    if not figures.rows:
        return
    yield Heading(text="Figures of the search runs", level=3)
    yield figures
    notes = "Each column is one run of the search; latencies describe completed requests from their intended arrival."
    if any(TOO_FEW in _text(cell) for row in figures.rows for cell in row):
        notes += f" {TOO_FEW} rests on too few samples for this percentile."
    yield Paragraph(text=notes, kind="note")
    by_class = class_table(study)
    if by_class is not None:
        yield Heading(text="Per class", level=3)
        yield by_class


def _confirmation(study: StudyFacts) -> Iterator[Block]:
    table = repeat_table(study)
    if table is None:
        return
    is_simulated = (study.confirmation or {}).get("target") == "simulated"
    yield Heading(text="Repeats with other seeds, simulated" if is_simulated else "Confirming repeats", level=3)
    if study.gain is not None:
        gain = study.gain
        kind = "the model's error included:" if is_simulated else "95 % interval"
        span = f"{signed_share(gain.value)} ({kind} {signed_share(gain.low)} to {signed_share(gain.high)})"
        yield Paragraph(text=f"Gain in {label(study.objective)} over the default: {span}.")
    yield table
    warning = disagreement(study)
    if warning is not None:
        yield Paragraph(text=warning, kind="warning")
    yield Paragraph(
        text="Default and best ran again in turn, each pair on the same fresh requests. The stated gain rests on these "
        "runs alone: the best of many trials looks better in the search than it is.",
        kind="note",
    )


def disagreement(study: StudyFacts) -> str | None:
    """A warning where a run of the search lies far from the repeats of the same configuration."""
    found = []
    for name, key, trial in (("default", "default", study.default), (study.rival_name, "best", study.best)):
        values = study.repeats.get(key, ())
        if trial is None or trial.objective is None or len(values) < 2:
            continue
        low, high = min(values), max(values)
        slack = _USUAL_SPREAD * max(abs(low), abs(high))
        if not low - slack <= trial.objective <= high + slack:
            seen, span = shown(study.objective, trial.objective), f"{number(low)} to {shown(study.objective, high)}"
            found.append(f"{name} had {seen} in the search but {span} in the repeats")
    if not found:
        return None
    return (
        f"The search and the repeats disagree: {'; '.join(found)}. Something else used the machine meanwhile, or the "
        "load is at the edge of what can be served. Trust the repeats, and run the sweep again on a quiet machine."
    )


def _limits_and_verdicts(study: StudyFacts) -> Iterator[Block]:
    table = limit_table(study)
    if table is not None:
        yield Heading(text="Service level objectives")
        yield table
        yield Paragraph(
            text="Share of the requests issued that kept each limit; failed and unfinished ones count as missed. A "
            "request with fewer than two output tokens keeps a TPOT limit by definition.",
            kind="note",
        )
    yield Heading(text="Can the runs be trusted?")
    counts: dict[str, int] = {}
    for trial in study.trials:
        if trial.verdict is not None:
            counts[trial.verdict] = counts.get(trial.verdict, 0) + 1
    if not counts:
        yield Paragraph(text="No run was judged.")
        return
    yield Paragraph(text=f"Verdicts: {', '.join(f'{count} {name}' for name, count in counts.items())}.")
    reasons = [
        f"{name}: {trial.verdict}" + (f". {trial.reason}" if trial.reason else ", no doubts.")
        for name, trial in study.compared
        if trial.verdict is not None
    ]
    doubts = [
        f"trial {trial.number}: {trial.verdict}. {trial.reason}"
        for trial in study.trials
        if trial.verdict not in (None, "VALID") and trial not in [t for _, t in study.compared]
    ]
    yield Bullets(items=[*reasons, *doubts])


def _binding(study: StudyFacts) -> Iterator[Block]:
    columns = [(name, trial.binding) for name, trial in study.compared if trial.binding]
    if columns:
        yield Heading(text="What limited the engine")
        yield Bullets(items=[f"{name}: {found['verdict']}" for name, found in columns])
        causes = [cause for cause in CAUSES if any(found["shares"].get(cause) for _, found in columns)]
        causes += [c for _, found in columns for c in found["shares"] if c not in CAUSES]
        rows: list[list[Cell | str]] = [
            [CAUSES.get(cause, cause), *(share(found["shares"].get(cause, 0.0)) for _, found in columns)]
            for cause in dict.fromkeys(causes)
        ]
        rows.append(["busy steps", *(number(found.get("num_busy_steps")) for _, found in columns)])
        rows.append(["most requests at once", *(number(found.get("most_running")) for _, found in columns)])
        rows.append(["tokens recomputed", *(number(found.get("recomputed_tokens")) for _, found in columns)])
        yield Table(header=["A step admitted nobody else because of", *(name for name, _ in columns)], rows=rows)
    yield Heading(text="Parameters that changed nothing")
    if study.identical:
        yield Bullets(items=study.identical)
    elif sum(trial.fingerprint is not None for trial in study.trials) > 1:
        yield Paragraph(text="None: every configuration led to scheduling decisions of its own.")
    else:
        yield Paragraph(text="Unknown: fewer than two trials recorded their scheduling decisions.")


def _pictures(title: str, captions: Mapping[str, str], keys: Sequence[str]) -> Iterator[Block]:
    there = [key for key in keys if key in captions]
    if there:
        yield Heading(text=title)
    for key in there:
        yield Picture(key=key, caption=captions[key])


def _trials(study: StudyFacts) -> Iterator[Block]:
    if not study.trials:
        return
    yield Heading(text="All trials")
    names = list(study.space)
    figures = [name for name in _TRIAL_FIGURES if name != study.objective]
    rows = [[*_trial_cells(study, trial, names, figures)] for trial in study.trials]
    header = ["#", "State", "Verdict", "SLO", *names, label(study.objective), *(label(name) for name in figures)]
    yield Table(header=header, rows=rows, left=frozenset({0, 1, 2, 3}), is_dense=True)
    unscored = [trial for trial in study.trials if not trial.is_scored]
    if unscored:
        yield Heading(text="Trials without a score", level=3)
        yield Bullets(
            items=[
                f"trial {trial.number}, {trial.state.lower()}: {trial.reason or 'no reason recorded'}"
                for trial in unscored
            ]
        )


def _trial_cells(study: StudyFacts, trial: TrialFacts, names: list[str], figures: list[str]) -> Iterator[Cell | str]:
    is_best = study.best is not None and trial.number == study.best.number
    name = f"{trial.number}" + (" default" if trial.number == 0 else "") + (" best" if is_best else "")
    yield Cell(text=name, tone="strong" if is_best or trial.number == 0 else "plain")
    yield Cell(text=trial.state.lower(), tone="plain" if trial.state == "COMPLETE" else "dim")
    yield Cell(text=trial.verdict or DASH, tone="plain" if trial.verdict in (None, "VALID") else "bad")
    if not trial.constraints:
        yield DASH
    else:
        missed = ", ".join(trial.missed)
        yield Cell(text=f"✗ {missed}" if missed else "✓ kept", tone="bad" if missed else "good")
    for key in names:
        yield parameter(trial.params.get(key))
    value = shown(study.objective, trial.objective)
    yield Cell(text=f"{value} (coarse)" if trial.is_coarse else value, tone="dim" if trial.is_coarse else "strong")
    for key in figures:
        yield shown(key, trial.value(key))


def _provenance(study: StudyFacts, command: Sequence[str]) -> Iterator[Block]:
    yield Heading(text="Where this comes from")
    facts = provenance_rows(study.provenance)
    rows = [["Study", study.name], ["Scenario", f"{study.scenario} (resolved copy: scenario.yaml beside this file)"]]
    if study.created_at:
        rows.append(["First trial ended", study.created_at])
    rows.append(["Seed", f"{study.scenario_resolved.get('seed', DASH)} (workload), {number(study.seed)} (search)"])
    yield Table(header=["What", "Value"], rows=[*rows, *facts], left=frozenset({0, 1}))
    yield Paragraph(text="To run it again:")
    yield Code(text="\n".join(command))


def provenance_rows(provenance: Mapping[str, Any]) -> list[list[str]]:
    """Code, hardware and versions as (what, value)."""
    rows = []
    commit = provenance.get("commit")
    if commit:
        changes = " with local changes" if provenance.get("has_local_changes") else ""
        rows.append(["Commit", f"{commit}{changes}"])
    hardware = provenance.get("hardware") or {}
    memory = hardware.get("memory_bytes")
    parts = [hardware.get("cpu"), f"{hardware['num_cpus']} CPUs" if hardware.get("num_cpus") else None]
    parts.append(f"{memory / 2**30:.1f} GiB memory" if memory else None)
    if any(parts):
        rows.append(["Hardware", ", ".join(str(part) for part in parts if part)])
    if provenance.get("platform"):
        rows.append(["Platform", f"Python {provenance.get('python') or DASH}, {provenance['platform']}"])
    versions = provenance.get("versions") or {}
    known = [f"{name} {version}" for name, version in versions.items() if version]
    if known:
        rows.append(["Versions", ", ".join(known)])
    return rows


def _text(cell: Cell | str) -> str:
    return cell.text if isinstance(cell, Cell) else cell
