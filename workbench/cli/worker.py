"""A worker of a shared study in the terminal."""

from __future__ import annotations

from workbench.cli.console import err, out
from workbench.cli.signals import sigterm_as_interrupt
from workbench.cli.sweep import render_trial
from workbench.scenario import Scenario
from workbench.services.work import WorkEvents, work


def worker_command(study: str, *, storage: str, workers: int, as_json: bool) -> None:
    objective = ""

    def on_start(scenario: Scenario, num_open: int, warnings: list[str]) -> None:
        nonlocal objective
        objective = scenario.search.objective if scenario.search is not None else ""
        err.print(f"study {study}: {num_open} trials left, objective {objective}", markup=False)
        for warning in warnings:
            err.print(f"warning: {warning}", markup=False)

    def on_wait(num_open: int) -> None:
        err.print(f"waiting for {num_open} trials that others work on", markup=False)

    events = WorkEvents(on_start=on_start, on_trial=lambda record: render_trial(record, objective), on_wait=on_wait)
    with sigterm_as_interrupt():
        result = work(study, storage, workers=workers, events=events)
    if as_json:
        from workbench.cli.main import print_json

        print_json(result.to_json())
    else:
        out.print(f"{len(result.records)} trials evaluated, {result.num_open} left in the study", markup=False)
    if result.stopped is not None:
        err.print(f"stopped: {result.stopped}", markup=False)
    if result.has_failed:
        raise SystemExit(1)
