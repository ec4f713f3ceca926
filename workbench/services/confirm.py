"""The finalists once more, on fresh requests and perhaps another target: what was found against what is measured.

The best of many noisy trials looks better than it is, and a cost model is a model. So default and finalists run again
in turn, each round on the same fresh requests; the stated gain rests on these runs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from workbench.loadgen.errors import ServerFailed
from workbench.scenario import Scenario
from workbench.scenario.search import DEVICE_FIELDS, Confirm, Search
from workbench.scenario.target import SimulatedTarget
from workbench.search.confirmation import Confirmation, Confirmed, Repeat, conclude, finalists_of
from workbench.search.outcome import TrialState
from workbench.search.selection import Gain
from workbench.search.trials import TrialRecord
from workbench.services.rate_trial import RateHints
from workbench.services.trials import TrialWorker


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
    finalists = finalists_of(records, search, confirm.finalists)
    default = next((record for record in records if record.number == 0), None)
    if default is not None and default.outcome.objective is None:
        default = None  # it gave nothing in the search: there is nothing to compare with
    if confirm.target is None and [record.number for record in finalists] == [0]:
        return Confirmation(target=kind, winner=default, gain=Gain(value=0.0, low=0.0, high=0.0))
    rivals = [] if default is None else [default]
    rivals += [record for record in finalists if record.number != 0]
    measured = _measured(scenario, rivals, kind, workers, repeats, on_run)
    return conclude(
        kind,
        None if default is None else measured[default.number],
        [measured[record.number] for record in finalists],
        maximize=search.maximize,
    )


def _measured(
    scenario: Scenario,
    rivals: Sequence[TrialRecord],
    kind: str,
    workers: Sequence[TrialWorker],
    repeats: int,
    on_run: Callable[[int, int], None],
) -> dict[int, Confirmed]:
    """Trial number -> its repeats. Every second round goes the other way, so that a drift of the machine is shared."""
    jobs = [(record, repeat) for repeat in range(repeats) for record in (rivals if repeat % 2 == 0 else rivals[::-1])]
    free: SimpleQueue[TrialWorker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    hopeless: dict[int, Repeat] = {}
    """What cannot start is not waited for in every round."""

    def run(job: tuple[TrialRecord, int]) -> Repeat:
        record, repeat = job
        if record.number in hopeless:
            return hopeless[record.number]
        worker = free.get()
        try:
            outcome = worker.evaluate(
                params_for(scenario, record.params, kind),
                seed=scenario.seed + 1 + repeat,
                hints=RateHints(start_per_s=(record.outcome.rate or {}).get("passed")),
            )
            repeated = Repeat.of(outcome)
            if outcome.state is TrialState.INFEASIBLE or outcome.failure_kind == ServerFailed.__name__:
                hopeless[record.number] = repeated
            return repeated
        finally:
            free.put(worker)

    found: dict[int, list[Repeat]] = {record.number: [] for record in rivals}
    with ThreadPoolExecutor(max_workers=len(workers), thread_name_prefix="confirm") as pool:
        try:
            for (record, _), repeated in zip(jobs, pool.map(run, jobs), strict=True):
                found[record.number].append(repeated)
                on_run(sum(map(len, found.values())), len(jobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.end()
            raise
    return {record.number: Confirmed(record=record, repeats=tuple(found[record.number])) for record in rivals}


def params_for(scenario: Scenario, params: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The parameters on a target of another kind: the embedded engine has no device to choose; a server that is
    started for the purpose is told on how many GPUs and how quantised it was simulated."""
    if kind == "simulated":
        return dict(params)
    engine = {name: value for name, value in params.items() if name not in DEVICE_FIELDS}
    if kind != "endpoint" or not isinstance(scenario.target, SimulatedTarget):
        return engine
    simulated = scenario.target.model_dump(include={"tensor_parallel_size", "quantization", "kv_cache_dtype"})
    device = simulated | {name: params[name] for name in DEVICE_FIELDS if name in params}
    return engine | {name: value for name, value in device.items() if value not in (None, 1)}
