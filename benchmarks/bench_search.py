"""How near a sweep of 40 trials comes to the best of an exhaustive grid, on the gallery's simulated scenarios.

    python benchmarks/bench_search.py            # every scenario, five seeds, through the stored tables; one live trial
    python benchmarks/bench_search.py --quick    # three scenarios, one seed
    python benchmarks/bench_search.py --rebuild  # evaluate the grids again (hours); --scenarios NAME ... for some

A table holds the objective of every grid point (of a rate under 0.9 of the best, one that is shown to hold: its
bracket is not narrowed further), and the fingerprint of scenario and cost model (what it makes of the
scenario); another fingerprint is an error. A sweep through a table draws from the scenario's whole space; each point
stands for the nearest of the grid. What a live sweep learns of a configuration that cannot beat the best is what this
one learns: the same search for the rate runs, on the table's answers.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.metrics.proportion import Proof
from workbench.scenario import Scenario, load_scenario
from workbench.scenario.search import SUSTAINABLE_RATE, Search
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.rate import Probe, find_sustainable_rate
from workbench.search.selection import best_trial
from workbench.search.space import distributions_of, grid_points
from workbench.search.storage import open_journal
from workbench.search.study import SweepStudy, TrialRecord
from workbench.services.evaluate import run_scenario
from workbench.services.foresight import first_candidates, settle
from workbench.services.rate_trial import RateHints
from workbench.services.shared_study import default_params, search_of
from workbench.services.trials import evaluate_trial

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "benchmarks" / "data" / "search"
SCENARIOS = (
    "short-qa",
    "medium",
    "long-document",
    "code-completion",
    "chat-system-prompt",
    "pitfall-varying-header",
    "rag-document-front",
    "rag-document-behind",
    "burst",
    "reasoning",
    "pitfall-max-model-len",
    "pitfall-long-starves-short",
    "offline-batch",
)
QUICK = ("reasoning", "offline-batch", "pitfall-max-model-len")
PER_AXIS = 21
"""Values per parameter: 441 points."""
TRIALS = 40
SEEDS = (1, 2, 3, 4, 5)
CLOSE = 0.9
"""Share of the best rate found so far below which a point's rate is not narrowed further."""
AGREEMENT = 1e-6
"""Relative difference allowed between a live trial and the table."""


class TableError(Exception):
    """A table is missing, of another fingerprint, or disagrees with a live trial."""


@dataclass(frozen=True)
class Table:
    """The objective of every point of a grid."""

    name: str
    objective: str
    fingerprint: str
    axes: Mapping[str, Sequence[Any]]
    values: Sequence[float | None]
    """In the order of `itertools.product` over the axes; None where the point cannot win."""
    coarse: Sequence[int]
    """Indices of values that are lower bounds."""
    num_runs: int
    """Points that were run; the others are infeasible or cannot differ from one that was."""

    @classmethod
    def read(cls, name: str) -> Table:
        path = TABLES / f"{name}.json"
        if not path.exists():
            raise TableError(f"{path}: no such table. Make it with --rebuild --scenarios {name}")
        return cls(**json.loads(path.read_text()))

    def write(self) -> None:
        TABLES.mkdir(parents=True, exist_ok=True)
        (TABLES / f"{self.name}.json").write_text(json.dumps(self.__dict__) + "\n")

    def points(self) -> Iterator[dict[str, Any]]:
        for combination in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, combination, strict=True))

    def value(self, params: Mapping[str, Any]) -> float | None:
        """Of the nearest point, by ratio."""
        index = 0
        for name, axis in self.axes.items():
            nearest = min(range(len(axis)), key=lambda i: abs(math.log(axis[i] / params[name])))
            index = index * len(axis) + nearest
        return self.values[index]

    def best(self, *, maximize: bool) -> float:
        known = [value for value in self.values if value is not None]
        return max(known) if maximize else min(known)


def scenario_of(name: str) -> Scenario:
    return load_scenario(ROOT / "scenarios" / f"{name}.yaml")


def fingerprint_of(scenario: Scenario) -> str:
    """Of the scenario, and of the decisions and times of its default configuration: they move with scheduler, workload
    and cost model, not with the text of the program."""
    result = run_scenario(scenario)
    metrics = result.summary.overall
    figures = [
        format(value, ".5g")
        for statistics_ in (metrics.ttft_s, metrics.tpot_s, metrics.e2el_s)
        for value in (statistics_.mean or 0.0, statistics_.p50 or 0.0, statistics_.p95 or 0.0)
    ]
    whole = scenario.model_dump(exclude_defaults=True)
    whole["search"] = {key: value for key, value in whole["search"].items() if key in ("objective", "space")}
    text = json.dumps([whole, result.record.decision_fingerprint, figures], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def build(name: str) -> Table:
    """Evaluate the grid; points that cannot differ from an evaluated one take its value over, as in a sweep."""
    scenario = scenario_of(name)
    search = search_of(scenario)
    axes = grid_points(distributions_of(search.space), most=PER_AXIS)
    is_rate = search.objective == SUSTAINABLE_RATE
    finished: list[TrialRecord] = []
    values: list[float | None] = []
    coarse: list[int] = []
    num_runs, begin_s = 0, time.monotonic()
    # A good rate early on saves narrowing bad ones.
    best = evaluate_trial(scenario, default_params(scenario, search), None, None).objective if is_rate else None
    for number, combination in enumerate(itertools.product(*axes.values())):
        params = dict(zip(axes, combination, strict=True))
        outcome = settle(scenario, params, finished)
        if outcome is None:
            outcome = evaluate_trial(scenario, params, None, None, RateHints(to_beat=best and CLOSE * best))
            num_runs += 1
            finished.append(TrialRecord(number=number, params=params, outcome=outcome))
        values.append(_winning_value(outcome))
        if outcome.rate is not None and outcome.rate["is_coarse"]:
            coarse.append(number)
        elif is_rate:
            best = max(filter(None, (best, values[-1])), default=None)
        if number % 21 == 20:
            spent_s = time.monotonic() - begin_s
            print(f"{name}: {number + 1} points, {num_runs} runs, {spent_s:.0f} s", file=sys.stderr, flush=True)
    return Table(
        name=name,
        objective=search.objective,
        fingerprint=fingerprint_of(scenario),
        axes=axes,
        values=values,
        coarse=coarse,
        num_runs=num_runs,
    )


def _winning_value(outcome: TrialOutcome) -> float | None:
    """The objective of what could win (a duplicate counts as the trial that it duplicates)."""
    is_valid = outcome.verdict == "VALID" or outcome.duplicate_of is not None
    keeps = all(shortfall <= 0 for shortfall in outcome.constraints.values())
    return outcome.objective if outcome.state is TrialState.COMPLETE and is_valid and keeps else None


def sweep(table: Table, scenario: Scenario, seed: int, *, sampler: str | None = None) -> float:
    """The best objective that a sweep of at most 40 trials finds, as a fraction of the grid's best."""
    search = search_of(scenario)
    if sampler is not None:
        search = search.model_copy(update={"sampler": sampler})
    candidates = [] if sampler == "random" else [each.params for each in first_candidates(scenario, TRIALS)]
    finished: list[TrialRecord] = []

    def evaluate(number: int, params: Mapping[str, Any]) -> TrialOutcome:
        outcome = _answer(table, search, params, finished)
        finished.append(TrialRecord(number=number, params=params, outcome=outcome))
        return outcome

    with tempfile.TemporaryDirectory() as directory:
        study = SweepStudy(
            table.name,
            search,
            seed=seed,
            storage=open_journal(Path(directory) / "journal.log"),
            default_params=default_params(scenario, search),
        )
        study.run(evaluate, TRIALS, candidates=candidates)
        study.close()
    best = best_trial(finished, maximize=search.maximize)
    if best is None or best.outcome.objective is None:
        return 0.0
    found = table.value(best.params)
    assert found is not None
    return found / table.best(maximize=True) if search.maximize else table.best(maximize=False) / found


def _answer(table: Table, search: Search, params: Mapping[str, Any], finished: Sequence[TrialRecord]) -> TrialOutcome:
    value = table.value(params)
    if search.objective == SUSTAINABLE_RATE and value is not None:
        best = best_trial(finished, maximize=True)
        to_beat = None if best is None else best.outcome.objective

        def probe(rate: float, factor: int, draw: int) -> Probe:
            proof = Proof.HOLDS if rate <= value * (1 + 1e-9) else Proof.BROKEN
            return Probe(rate_per_s=rate, num_requests=factor, proof=proof, is_repeatable=True)

        value = find_sustainable_rate(probe, value, to_beat=to_beat).passed
    shortfall = {} if value is not None else {"slo": 1.0}
    return TrialOutcome(state=TrialState.COMPLETE, objective=value, verdict="VALID", constraints=shortfall, metrics={})


def check_live(table: Table, scenario: Scenario) -> None:
    """One point, drawn by the table's own fingerprint, evaluated now."""
    points = [
        point
        for number, (point, value) in enumerate(zip(table.points(), table.values, strict=True))
        if value is not None and number not in table.coarse
    ]
    point = points[int(table.fingerprint[:8], 16) % len(points)]
    expected = table.value(point)
    found = _winning_value(evaluate_trial(scenario, point, None, None, RateHints(start_per_s=expected)))
    if found is None or expected is None or abs(found / expected - 1) > AGREEMENT:
        raise TableError(f"{table.name}: {point} came to {found} live, the table says {expected}. Make it again")


def check_fingerprint(table: Table, scenario: Scenario) -> None:
    if table.fingerprint != fingerprint_of(scenario):
        raise TableError(
            f"{table.name}: scenario or cost model have changed since the table was made. Make it again with --rebuild "
            f"--scenarios {table.name}"
        )


def measure(name: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    scenario, table = scenario_of(name), Table.read(name)
    check_fingerprint(table, scenario)
    check_live(table, scenario)
    return [
        {
            "name": name,
            "fraction_of_best": sweep(table, scenario, seed),
            "trials": TRIALS,
            "seed": seed,
            "random": sweep(table, scenario, seed, sampler="random"),
            "objective": table.objective,
            "num_points": sum(value is not None for value in table.values),
        }
        for seed in seeds
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="three scenarios, one seed, within a minute")
    parser.add_argument("--rebuild", action="store_true", help="evaluate the grids again: hours")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--scenarios", nargs="+", metavar="NAME", default=None)
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    given = parser.parse_args()
    names = given.scenarios or (QUICK if given.quick else SCENARIOS)
    with ProcessPoolExecutor(max_workers=given.workers) as pool:
        try:
            if given.rebuild:
                for table in pool.map(build, names):
                    table.write()
            found = pool.map(measure, names, itertools.repeat(SEEDS[:1] if given.quick else SEEDS))
            rows = [row for part in found for row in part]
        except TableError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    if given.json:
        print(json.dumps({"scenarios": rows}))
    else:
        render(rows)
    return 0


def render(rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"{'scenario':28} {'objective':24} {'points':>6} {'worst':>7} {'median':>7} {'random':>7}")
    worst = []
    for name, group in itertools.groupby(rows, key=lambda row: row["name"]):
        part = list(group)
        fractions = [row["fraction_of_best"] for row in part]
        worst.append(min(fractions))
        print(
            f"{name:28} {part[0]['objective']:24} {part[0]['num_points']:6d} {min(fractions):7.1%} "
            f"{statistics.median(fractions):7.1%} {statistics.median(row['random'] for row in part):7.1%}"
        )
    print(f"\nworst seed of each scenario: median {statistics.median(worst):.1%}, worst {min(worst):.1%}")


if __name__ == "__main__":
    sys.exit(main())
