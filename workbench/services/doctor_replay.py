"""A stored simulation run again with something changed, and what became of its symptoms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import ValidationError

from engine.errors import EngineError
from workbench.loadgen.errors import RunFailed
from workbench.metrics.attainment import SloPolicy
from workbench.metrics.definitions import is_completed, ttft_s
from workbench.metrics.records import RequestTable, RunRecord
from workbench.metrics.summary import RunSummary, summarize
from workbench.metrics.windows import Window, cut_to
from workbench.scenario import Scenario, ScenarioError
from workbench.services.describe import limits_of
from workbench.services.evaluate import deadline_of, window_of
from workbench.services.targets import build_target
from workbench.store.runs import StoredRun
from workbench.workload import generate_workload
from workbench.workload.records import Workload

MOST_STEPS = 40_000
"""Longer simulations are not replayed: each replay takes as long again."""
_MOST_STEPS_IN_ALL = 400_000
"""Of all replays of a run; changes that come after are not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The measured window of one run."""

    record: RunRecord
    summary: RunSummary

    @property
    def meets_slo(self) -> bool | None:
        return self.summary.meets_slo

    def figure(self, name: str) -> float | None:
        """A symptom by name; None where the run has no such figure."""
        table = self.record.requests
        if name == "ttft_s.p95":
            return _ttft_p95(table)
        if name == "short_ttft_s.p95":
            return _short_ttft_p95(table)
        if name == "num_not_served":
            return float(np.count_nonzero(~is_completed(table)))
        if name == "full_length_concurrency":
            engine = self.record.engine
            blocks, size, window = (engine.get(key) for key in ("num_blocks", "block_size", "max_model_len"))
            return None if not (blocks and size and window) else blocks / -(-window // size)
        if name == "headroom_share":
            return 1.0 - float(self.record.engine["gpu_memory_utilization"])
        if name == "unused_seats":
            peak = int(self.record.steps.num_running.max()) if len(self.record.steps) else 0
            return float(self.record.engine["max_num_seqs"] - peak)
        if name == "client_lag_s.p99":
            lag = table.sent_s - table.arrival_s
            return float(np.percentile(lag[np.isfinite(lag)], 99)) if np.isfinite(lag).any() else None
        return self.summary.overall.value(name)


@dataclass(kw_only=True)
class Replayer:
    """Runs a stored scenario again on its simulated device; the same change is run once."""

    scenario: Scenario
    run: StoredRun
    workload: Workload
    _known: dict[str, Replay | None] = field(default_factory=dict)
    _num_steps: int = 0

    @cached_property
    def as_stored(self) -> Replay:
        """The run itself."""
        span = self.run.info.window_s
        window = None if span is None else Window(start_s=span[0], end_s=span[1])
        return self._measured(self.run.record, window, self.scenario)

    def replay(self, changes: Mapping[str, Any]) -> Replay | None:
        """Run with dotted keys of the scenario changed; None where that cannot run, or would take too long."""
        key = json.dumps(changes, sort_keys=True, default=str)
        if key not in self._known:
            if self._num_steps > _MOST_STEPS_IN_ALL:
                return None
            self._known[key] = self._replayed(changes)
        return self._known[key]

    def can_try(self, changes: Mapping[str, Any]) -> bool:
        """Tell whether the changes make a scenario."""
        try:
            self._changed(changes)
        except (ValidationError, ScenarioError, EngineError, LookupError, TypeError):
            return False
        return True

    def _replayed(self, changes: Mapping[str, Any]) -> Replay | None:
        try:
            scenario, params = self._changed(changes)
            workload = self._workload_for(scenario, changes)
            if workload is None:
                return None
            record = build_target(scenario, params).run(workload, deadline_s=deadline_of(workload))
            self._num_steps += len(record.steps)
            return self._measured(record, window_of(scenario, workload, record), scenario)
        except (ValidationError, EngineError, ScenarioError, RunFailed, LookupError, TypeError, ValueError):
            return None

    def _changed(self, changes: Mapping[str, Any]) -> tuple[Scenario, dict[str, Any]]:
        """(scenario, parameters of the trial): a change replaces what the trial had."""
        document = self.scenario.model_dump(mode="json")
        params = dict(self.run.info.params)
        for path, value in changes.items():
            *parents, name = path.split(".")
            part: Any = document
            for parent in parents:
                part = part[int(parent)] if isinstance(part, list) else part[parent]
            part[name] = value
            params.pop(name, None)
        return Scenario.model_validate(document), params

    def _workload_for(self, scenario: Scenario, changes: Mapping[str, Any]) -> Workload | None:
        if not any(path.startswith("workload.") for path in changes):
            return self.workload
        workload = generate_workload(scenario, limits_of(scenario), seed=self.run.info.seed)
        if not np.array_equal(workload.arrival_s, self.workload.arrival_s):
            return None  # a trial at another rate than the scenario's
        return workload

    @staticmethod
    def _measured(record: RunRecord, window: Window | None, scenario: Scenario) -> Replay:
        cut = record if window is None else cut_to(record, window)
        return Replay(record=cut, summary=summarize(cut, SloPolicy.from_scenario(scenario), window))


def _ttft_p95(table: RequestTable) -> float | None:
    """Over all issued: one without a first token counts as the longest."""
    values = ttft_s(table)
    if not np.isfinite(values).any():
        return None
    return float(np.percentile(np.where(np.isfinite(values), values, np.nanmax(values)), 95))


def _short_ttft_p95(table: RequestTable) -> float | None:
    values, lengths = ttft_s(table), table.num_prompt_tokens
    rows = np.isfinite(values) & (lengths <= np.median(lengths))
    return float(np.percentile(values[rows], 95)) if rows.any() else None
