"""The finalists once more, on fresh requests and perhaps another target: what was found against what is measured.

The best of many noisy trials looks better than it is, and a cost model is a model. So default and finalists run again
in turn, each round on the same fresh requests; the stated gain rests on these runs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np

from workbench.metrics.uncertainty import Interval, gain_of_pairs
from workbench.scenario import Scenario
from workbench.scenario.search import DEVICE_FIELDS, Confirm, Search
from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.selection import Gain
from workbench.search.trials import TrialRecord
from workbench.services.rate_trial import RateHints
from workbench.services.trials import TrialWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """One finalist, or the default."""

    record: TrialRecord
    measured: tuple[float | None, ...]
    """Objective of each repeat; None where the run gave none that counts."""

    @property
    def values(self) -> list[float]:
        return [value for value in self.measured if value is not None and math.isfinite(value)]

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None

    @property
    def error(self) -> float | None:
        """predicted / measured - 1: how much better the search had it."""
        predicted = self.record.outcome.objective
        return None if predicted is None or not self.mean else predicted / self.mean - 1.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "number": self.record.number,
            "params": dict(self.record.params),
            "predicted": self.record.outcome.objective,
            "measured": list(self.measured),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What the repeats say."""

    target: str
    """Kind of the target that was measured."""
    default: Confirmed | None = None
    finalists: tuple[Confirmed, ...] = ()
    winner: TrialRecord | None = None
    """The finalist with the best mean; None where none was measured."""
    gain: Gain | None = None
    result: Interval | None = None
    """The winner's objective, widened by how far the finalists' predictions were apart from their measurements."""
    repeats: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """`default` and `best` -> objective of each round in which both were measured."""

    def to_dict(self) -> dict[str, Any]:
        result = self.result
        return {
            "target": self.target,
            "default": None if self.default is None else self.default.to_dict(),
            "finalists": [each.to_dict() for each in self.finalists],
            "winner": None if self.winner is None else self.winner.number,
            "result": None if result is None else {"value": result.value, "low": result.low, "high": result.high},
        }


def finalists_of(records: Sequence[TrialRecord], search: Search, count: int) -> list[TrialRecord]:
    """The best trials that may win, the earlier of equals first."""
    able = [record for record in records if record.outcome.may_win and record.outcome.objective is not None]
    sign = -1.0 if search.maximize else 1.0
    return sorted(able, key=lambda record: (sign * (record.outcome.objective or 0.0), record.number))[:count]


def scenario_to_confirm(scenario: Scenario, confirm: Confirm) -> Scenario:
    """The scenario on the target, and with the number of requests, that the confirmation asks for."""
    changes: dict[str, Any] = {}
    if confirm.target is not None:
        changes["target"] = confirm.target
    if confirm.num_requests is not None:
        changes["workload"] = scenario.workload.model_copy(update={"num_requests": confirm.num_requests})
    return scenario.model_copy(update=changes)


def confirm_finalists(
    scenario: Scenario,
    search: Search,
    records: Sequence[TrialRecord],
    *,
    workers: Sequence[TrialWorker],
    repeats: int,
    on_run: Callable[[int, int], None],
) -> Confirmation:
    """Default and finalists in turn, `repeats` times; the workers evaluate `scenario_to_confirm`, one run each at a
    time: give one where runs would slow each other."""
    confirm = search.confirm
    kind = scenario.target.kind if confirm.target is None else confirm.target.kind
    default = next((record for record in records if record.number == 0), None)
    finalists = finalists_of(records, search, confirm.finalists)
    if default is None or default.outcome.objective is None or not finalists:
        return Confirmation(target=kind, winner=finalists[0] if finalists else None)
    if confirm.target is None and [record.number for record in finalists] == [0]:
        return Confirmation(target=kind, winner=default, gain=Gain(value=0.0, low=0.0, high=0.0))
    rivals = [default, *(record for record in finalists if record.number != 0)]
    jobs = [(record, repeat) for repeat in range(repeats) for record in (rivals if repeat % 2 == 0 else rivals[::-1])]
    free: SimpleQueue[TrialWorker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def run(job: tuple[TrialRecord, int]) -> float | None:
        record, repeat = job
        worker = free.get()
        try:
            return _counting_value(
                worker.evaluate(
                    _for_target(record.params, kind),
                    seed=scenario.seed + 1 + repeat,
                    hints=RateHints(start_per_s=record.outcome.objective),
                )
            )
        finally:
            free.put(worker)

    measured: dict[int, list[float | None]] = {record.number: [] for record in rivals}
    with ThreadPoolExecutor(max_workers=len(workers), thread_name_prefix="confirm") as pool:
        try:
            for (record, _), value in zip(jobs, pool.map(run, jobs), strict=True):
                measured[record.number].append(value)
                on_run(sum(map(len, measured.values())), len(jobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.end()
            raise
    found = [Confirmed(record=record, measured=tuple(measured[record.number])) for record in rivals]
    return _concluded(kind, found, finalists, search)


def _for_target(params: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Without what only a simulated device has."""
    return {name: value for name, value in params.items() if kind == "simulated" or name not in DEVICE_FIELDS}


def _counting_value(outcome: TrialOutcome) -> float | None:
    return outcome.objective if outcome.state is TrialState.COMPLETE and outcome.verdict != "INVALID" else None


def _concluded(kind: str, found: Sequence[Confirmed], finalists: Sequence[TrialRecord], search: Search) -> Confirmation:
    default = found[0]
    numbers = {record.number for record in finalists}
    able = [each for each in found if each.record.number in numbers and each.mean is not None]
    if not able:
        return Confirmation(target=kind, default=default, finalists=tuple(found[1:]))
    sign = -1.0 if search.maximize else 1.0
    winner = min(able, key=lambda each: sign * (each.mean or 0.0))
    pairs = [
        (one, other)
        for one, other in zip(default.measured, winner.measured, strict=True)
        if one is not None and other is not None
    ]
    gain = Gain(value=0.0, low=0.0, high=0.0) if winner is default else _gain(pairs, maximize=search.maximize)
    return Confirmation(
        target=kind,
        default=default,
        finalists=tuple(each for each in found if each.record.number in numbers),
        winner=winner.record,
        gain=gain,
        result=_result(winner, able),
        repeats={"default": [one for one, _ in pairs], "best": [other for _, other in pairs]},
    )


def _gain(pairs: Sequence[tuple[float, float]], *, maximize: bool) -> Gain | None:
    if len(pairs) < 2 or not all(value > 0 for pair in pairs for value in pair):
        return None
    one, other = np.array(pairs).T
    interval = gain_of_pairs(one, other, maximize=maximize)
    return Gain(value=interval.value, low=interval.low, high=interval.high)


def _result(winner: Confirmed, able: Sequence[Confirmed]) -> Interval | None:
    """Student's t over the repeats, on logarithms; the variance of the finalists' prediction errors is added: what one
    configuration's figure is worth on another day or device shows in how they scatter."""
    values = winner.values
    if len(values) < 2 or not all(value > 0 for value in values):
        return None
    from scipy.stats import t as student  # slow to import and needed here only

    logs = np.log(values)
    errors = [each.error for each in able if each.error is not None and each.error > -1]
    scatter = float(np.var(np.log1p(errors), ddof=1)) if len(errors) > 1 else 0.0
    spread = math.sqrt(float(logs.var(ddof=1)) / len(logs) + scatter)
    reach = float(student.ppf(0.975, len(logs) - 1)) * spread
    center = float(logs.mean())
    return Interval(value=math.exp(center), low=math.exp(center - reach), high=math.exp(center + reach))
