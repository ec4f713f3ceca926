"""What the search itself found: the bracket of each rate, the front of several objectives, what was confirmed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workbench.report.document import Block, Bullets, Cell, Heading, Paragraph, Table
from workbench.report.facts import StudyFacts, TrialFacts
from workbench.report.quantities import DASH, label, parameter, shown, signed_share
from workbench.report.rate_words import RATE, gap_in_words


def rate_blocks(study: StudyFacts) -> Iterator[Block]:
    """Default and best: the rate that holds, the one that does not, and what stands in the way."""
    found = [(name, trial) for name, trial in study.compared if trial.rate]
    if not found:
        return
    yield Heading(text="How much traffic it carries")
    rows = [[name, *_bracket_cells(trial)] for name, trial in found]
    header = ["", "Shown to hold up to", "Shown not to hold at", "Between the two", "Probes", "What fails there"]
    yield Table(header=header, rows=rows, left=frozenset({0, 3, 5}))
    yield Paragraph(
        text="A rate holds when the 95 % interval (Wilson) of every SLO's attainment lies above its target, and "
        "the number of requests inside does not grow together with a latency; it is shown not to hold when an interval "
        "lies below, or they grow. The rates that decide are tried with several draws of the load. A rate whose "
        "interval straddles the target even with four times the requests is unresolved: more requests would narrow "
        "the bracket. Every configuration is offered the same draws of requests, faster or slower.",
        kind="note",
    )


def _bracket_cells(trial: TrialFacts) -> list[Cell | str]:
    rate = trial.rate or {}
    passed, failed, probes = rate.get("passed"), rate.get("failed"), rate.get("probes") or []
    reasons = [
        str(probe.get("reason")) for probe in probes if probe.get("rate_per_s") == failed and probe.get("reason")
    ]
    first = Cell(text=shown(RATE, passed), tone="strong") if passed is not None else Cell(text="no rate", tone="bad")
    reason = reasons[-1] if reasons else DASH
    return [first, shown(RATE, failed), gap_in_words(rate), str(len(probes)), reason]


def pair_in_words(study: StudyFacts) -> str:
    """Which two parameters matter together, as far as the trials show it: the caption of their plot."""
    what = (
        "The objective over two parameters at once, one mark per trial; diamonds cannot win (SLO missed, run in "
        "doubt, or a duplicate). "
    )
    if study.interactions is None:
        count = sum(trial.is_scored for trial in study.trials)
        return f"{what}Whether any two interact cannot be told from these {count} complete trials."
    if not study.interactions:
        return what
    strongest = study.interactions[0]
    names = " and ".join(strongest.names)
    odds = f"p = {max(strongest.p_value, 0.001):.2g} in a permutation test over all pairs"
    if not strongest.is_shown:
        return f"{what}No two are shown to interact; the strongest are {names} ({odds})."
    return (
        f"{what}{names} interact: {strongest.share:.0%} of the variation is explained by both together and not by each "
        f"alone ({odds}). Choose them together."
    )


def front_blocks(study: StudyFacts) -> Iterator[Block]:
    """The configurations that no other beats in every objective."""
    front: Mapping[str, Any] = study.pareto or {}
    if not front.get("front"):
        return
    names, params = list(front["objectives"]), list(study.space)
    yield Heading(text="Pareto front")
    rows: list[list[Cell | str]] = []
    for entry in front["front"]:
        is_knee = entry["number"] == front.get("knee")
        mark = Cell(text=f"{entry['number']}" + (" knee" if is_knee else ""), tone="strong" if is_knee else "plain")
        figures = [shown(name, (entry.get("values") or {}).get(name)) for name in names]
        rows.append([mark, *(parameter(entry["params"].get(name)) for name in params), *figures])
    yield Table(header=["Trial", *params, *(label(name) for name in names)], rows=rows)
    yield Paragraph(
        text="No other valid trial is as good in all of these and better in one. The knee is the nearest to the best "
        f"of each, scaled to the span of the front. The front dominates {front.get('hypervolume', 0.0):.0%} of the box "
        "between the best and the worst values seen (hypervolume).",
        kind="note",
    )


def prediction_blocks(study: StudyFacts) -> Iterator[Block]:
    """What the search had of default and finalists against what the repeats measured."""
    found: Mapping[str, Any] = study.confirmation or {}
    known = {each["number"]: each for each in (found.get("default"), *(found.get("finalists") or ())) if each}
    if not known:
        return
    is_simulated = found.get("target") == "simulated"  # a simulator compared with itself measures nothing
    yield Heading(text="Simulated again with other seeds" if is_simulated else "Predicted against measured")
    header = ["Trial", "In the search", f"Measured ({found.get('target')})", "Predicted / measured - 1"]
    if is_simulated:
        header = ["Trial", "In the search", "Again (simulated)", "Difference"]
    yield Table(header=header, rows=[_prediction_row(study, found, each) for each in known.values()])
    yield from _uncounted(known)
    if found.get("doubt"):
        yield Paragraph(text=f"Nothing is confirmed: {found['doubt']}.", kind="warning")
    result = found.get("result")
    if result:
        low, high = (shown(study.objective, result[key]) for key in ("low", "high"))
        yield Paragraph(
            text=f"The winner's {label(study.objective)}: {shown(study.objective, result['value'])} (95 % interval "
            f"{low} to {high}, the scatter of these errors included)."
        )


def _prediction_row(study: StudyFacts, found: Mapping[str, Any], each: Mapping[str, Any]) -> list[Cell | str]:
    number, doubt = each["number"], each.get("doubt")
    name = f"{number}" + (" default" if number == 0 else "") + (" winner" if number == found.get("winner") else "")
    measured = ", ".join(
        "no evidence" if value is None else shown(study.objective, value) for value in each["measured"]
    )
    values = Cell(text=measured, tone="bad") if doubt else measured
    return [name, shown(study.objective, each["predicted"]), values, signed_share(each["error"])]


def _uncounted(known: Mapping[int, Mapping[str, Any]]) -> Iterator[Block]:
    """Repeats that are no evidence, and finalists that miss the SLO, with the reason."""
    lines = []
    for number, each in known.items():
        for repeat, reason in enumerate(each.get("reasons") or (), 1):
            if reason:
                lines.append(f"Trial {number}, repeat {repeat}: {reason}")
        if (each.get("doubt") or "").startswith("misses"):
            lines.append(f"Trial {number} {each['doubt']}")
    if lines:
        yield Paragraph(text="These repeats do not count, or speak against their trial:")
        yield Bullets(items=lines)
