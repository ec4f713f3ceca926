"""How much traffic a configuration sustains: probes of one target at one rate after another."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.metrics.attainment import SloPolicy
from workbench.metrics.certainty import HopelessRun
from workbench.metrics.peaks import Peaks
from workbench.metrics.proportion import Proof
from workbench.metrics.records import IntArray, RequestTable
from workbench.metrics.steady import STEADY_S
from workbench.metrics.sustain import judge_sustained
from workbench.scenario import Scenario, ScenarioError
from workbench.search.rate import MOST_REQUESTS, Probe, RateBracket, find_sustainable_rate
from workbench.services.evaluate import RunResult, assess, deadline_of
from workbench.services.targets import RunnableTarget, build_target
from workbench.workload import generate_workload
from workbench.workload.rate import arrival_rate, at_rate, is_recorded, lengthened, remember_prompts
from workbench.workload.records import Workload

NEXT_DRAW = 1_000_003
"""Between the seeds of two draws of one load: repeats of a trial count up from its seed by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateResult:
    """What the search for the rate came to."""

    bracket: RateBracket
    run: RunResult
    """At the rate that passed; at the lowest one tried where none did."""
    peaks: Peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class RateHints:
    """What is known before: it saves probes, and does not change the answer."""

    start_per_s: float | None = None
    """First guess; None: the scenario's own rate."""
    to_beat: float | None = None
    """The best rate so far: a configuration that cannot carry more is bracketed coarsely."""


def run_for_rate(
    scenario: Scenario, params: Mapping[str, Any], *, seed: int | None = None, hints: RateHints | None = None
) -> RateResult:
    """Search the sustainable rate of the scenario with `params` on top of its engine section. Raises as
    `evaluate.run_scenario` does."""
    target = build_target(scenario, params)
    try:
        prober = RateProber(
            target=target, scenario=scenario, params=params, seed=scenario.seed if seed is None else seed
        )
        return prober.search(hints or RateHints())
    finally:
        target.close()


@dataclass(slots=True, kw_only=True)
class RateProber:
    """Runs the scenario's requests on a standing target at any rate; each set of requests is made once."""

    target: RunnableTarget
    scenario: Scenario
    params: Mapping[str, Any]
    seed: int
    peaks: Peaks = field(default_factory=Peaks)
    _workloads: dict[tuple[int, int], Workload] = field(default_factory=dict)
    _runs: dict[float, RunResult] = field(default_factory=dict)
    """Rate -> its last run, of the lowest rate and of those that held."""

    def search(self, hints: RateHints) -> RateResult:
        """Bracket the sustainable rate; the scenario's own rate is the first guess unless a better one is given.

        Raises `ScenarioError` for arrivals that have no rate.
        """
        own = arrival_rate(self._workload(1, 0))
        if own is None:
            raise ScenarioError(
                f"{self.scenario.name}: workload: too few arrivals to have a rate. Raise num_requests or duration"
            )
        bracket = find_sustainable_rate(self.probe, hints.start_per_s or own, to_beat=hints.to_beat)
        rate = min(self._runs) if bracket.passed is None else bracket.passed
        return RateResult(bracket=bracket, run=self._runs[rate], peaks=self.peaks)

    def probe(self, rate_per_s: float, factor: int, draw: int) -> Probe:
        """One run of `factor` times the scenario's requests, in the draw of that number."""
        workload = at_rate(self._workload(factor, draw), rate_per_s)
        rule = HopelessRun.of(self._policy, workload.class_names, workload.class_index)
        record = self.target.run(workload, deadline_s=deadline_of(workload), stop=rule)
        self.peaks = self.peaks.joined(Peaks.of(record))
        result = assess(lengthened(self.scenario, factor), self.params, self._seed_of(draw), workload, record)
        if record.stopped is not None:
            proof, reason = Proof.BROKEN, record.stopped
        else:
            answer = judge_sustained(record.requests, result.summary, sessions_of(workload, record.requests))
            proof, reason = answer.proof, answer.reason or ""
        if proof is Proof.HOLDS or rate_per_s <= min(self._runs, default=rate_per_s):
            self._runs[rate_per_s] = result
        return Probe(
            rate_per_s=rate_per_s,
            num_requests=len(workload),
            proof=proof,
            reason=reason or None,
            is_short=factor < MOST_REQUESTS and float(np.ptp(record.requests.arrival_s)) < STEADY_S,
            served_singly=bool(len(record.steps)) and int(record.steps.num_running.max()) <= 1,
            is_repeatable=self.scenario.target.kind == "simulated" and is_recorded(self.scenario),
        )

    @property
    def _policy(self) -> SloPolicy:
        return SloPolicy.from_scenario(self.scenario)

    def _seed_of(self, draw: int) -> int:
        return self.seed + draw * NEXT_DRAW

    def _workload(self, factor: int, draw: int) -> Workload:
        longer, seed = lengthened(self.scenario, factor), self._seed_of(draw)
        if self.scenario.target.kind == "endpoint":  # its prefix cache outlives a probe
            return generate_workload(longer, self.target.limits, seed=seed, prompt_seed=secrets.randbits(31))
        if (factor, draw) not in self._workloads:
            workload = generate_workload(longer, self.target.limits, seed=seed)
            self._workloads[factor, draw] = remember_prompts(workload)
        return self._workloads[factor, draw]


def sessions_of(workload: Workload, table: RequestTable) -> IntArray | None:
    """[n] conversation of each row of the table; None where nobody waits for an answer before."""
    if workload.turn_pacing is None:
        return None
    session = dict(zip(workload.request_ids, workload.session_index.tolist(), strict=True))
    return np.array([session[request_id] for request_id in table.request_ids], dtype=np.int64)
