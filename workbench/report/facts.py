"""What there is to say about a study and its runs: frozen records, no drawing, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.metrics.records import FloatArray, IntArray
from workbench.records.basis import Basis
from workbench.report.quantities import value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFacts:
    """One trial of a study."""

    number: int
    state: str
    """COMPLETE, INFEASIBLE, FAILED or PRUNED."""
    params: Mapping[str, Any]
    metrics: Mapping[str, Any] | None = None
    """The object `M`."""
    verdict: str | None = None
    reason: str | None = None
    objective: float | None = None
    constraints: Mapping[str, float] = field(default_factory=dict)
    """SLO limit -> required share minus share that kept it; at most 0 when it holds."""
    duration_s: float | None = None
    fingerprint: str | None = None
    binding: Mapping[str, Any] | None = None
    run: str | None = None
    """Name of the run's folder in the study's."""
    rate: Mapping[str, Any] | None = None
    """Of a search for the sustainable rate: `passed`, `failed`, `probes`."""
    limits: Sequence[Mapping[str, Any]] = ()
    """Each limit with its value, the share required and the share reached."""

    @property
    def missed(self) -> tuple[str, ...]:
        """SLO limits that were not kept."""
        return tuple(name for name, shortfall in self.constraints.items() if shortfall > 0)

    @property
    def is_scored(self) -> bool:
        """It has an objective to show, trusted or not."""
        return self.state == "COMPLETE" and self.objective is not None

    @property
    def is_coarse(self) -> bool:
        """Its rate is a lower bound: the search ended once it could not beat the best so far."""
        return bool((self.rate or {}).get("is_coarse"))

    @property
    def may_win(self) -> bool:
        """Complete, valid and within every limit."""
        return self.is_scored and self.verdict == "VALID" and not self.missed

    def value(self, name: str) -> float | None:
        return value_of(self.metrics, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionFacts:
    """How one parameter was searched."""

    log: bool = False
    choices: tuple[Any, ...] | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractionFacts:
    """Two parameters that were looked at together."""

    names: tuple[str, str]
    share: float
    """Of the objective's variation that only both together explain."""
    p_value: float
    is_shown: bool
    """Chance seldom makes a pair look as strong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GainFacts:
    """best / default - 1 in the objective, positive is better, with a 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        return self.low > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """How one SLO limit was kept in one run."""

    name: str
    """As written: `ttft_p95`."""
    classes: tuple[str, ...] = ()
    """Classes it binds; empty: all."""
    limit_s: float
    required: float
    """Share of the requests issued that must keep it."""
    achieved: float | None
    by_class: Mapping[str, float | None] = field(default_factory=dict)
    """Class -> share that kept it; empty for a single class."""

    @property
    def is_met(self) -> bool:
        return self.achieved is not None and self.achieved >= self.required


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run in equal spans of time; one value per span, nan in the token figures where no step began."""

    time_s: FloatArray
    """Middle of the span."""
    span_s: float
    running: FloatArray
    """Most requests that ran at once."""
    waiting: FloatArray
    tokens_mean: FloatArray
    """Scheduled tokens per step."""
    tokens_max: FloatArray
    blocks_in_use: FloatArray
    preemptions: IntArray
    """In the span; 0 where no step was."""
    num_blocks: int
    """Blocks in the pool."""
    num_steps: int
    num_engines: int = 1
    """Whose requests, blocks and steps these are, together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One stored run."""

    name: str
    created_at: str
    scenario: Mapping[str, Any]
    seed: int
    params: Mapping[str, Any]
    engine: Mapping[str, Any]
    """Resolved parameters."""
    metrics: Mapping[str, Any] | None
    classes: Mapping[str, Mapping[str, Any]]
    verdict: str | None
    reasons: tuple[str, ...]
    failure: str | None
    provenance: Mapping[str, Any]
    clock: str
    duration_s: float
    notes: tuple[str, ...]
    binding: Mapping[str, Any] | None
    limits: tuple[LimitFacts, ...]
    samples: Mapping[str, Mapping[str, FloatArray]]
    """`all` and each class (where there are several) -> metric (`ttft_s`, ...) -> values of completed requests, s."""
    timeline: Timeline | None
    window_s: tuple[float, float]
    """The part of the run that was measured."""
    num_recomputed_tokens: int | None
    replica_counts: Sequence[tuple[float, int, int]] = ()
    """Of a fleet that changed: (from when on, up, starting); empty otherwise."""
    replicas: Sequence[Mapping[str, Any]] = ()
    """Of a fleet: what each replica did; empty otherwise."""

    @property
    def basis(self) -> Basis:
        """What the run rests on."""
        kind = (self.scenario.get("target") or {}).get("kind") or "embedded"
        return Basis.of(kind, str(self.scenario.get("model")), self.engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFacts:
    """One study, whole or as far as it came."""

    name: str
    scenario: str
    description: str
    objective: str
    maximize: bool
    conclusion: str
    trials: Sequence[TrialFacts]
    default: TrialFacts | None
    best: TrialFacts | None
    gain: GainFacts | None
    repeats: Mapping[str, Sequence[float]]
    """`default` and `best` -> objective of each confirming run."""
    limits: Mapping[str, tuple[float, float]]
    """SLO limit by its written name -> (limit in seconds, required share of requests)."""
    space: Mapping[str, DimensionFacts]
    stopped: str | None
    identical: tuple[str, ...]
    """One sentence per group of trials whose scheduling decisions were the same."""
    runs: Mapping[int, RunFacts]
    """Trial number -> its run, for the trials that are looked at closely."""
    problems: tuple[str, ...]
    """What could not be read."""
    importances: Mapping[str, float] | None
    provenance: Mapping[str, Any]
    seed: int | None
    """Of the search."""
    scenario_resolved: Mapping[str, Any]
    created_at: str | None
    pareto: Mapping[str, Any] | None = None
    """With several objectives: `objectives`, `front`, `knee`, `hypervolume`."""
    interactions: Sequence[InteractionFacts] | None = None
    """Every pair of parameters, strongest first; None where too little is known."""
    confirmation: Mapping[str, Any] | None = None
    """`target`, `default`, `finalists` with predicted and measured objective, `result`."""
    requests: Mapping[str, Any] | None = None
    """Rows of the load: read, used, skipped by reason."""
    basis: str = ""
    """What the study rests on, in a sentence."""
    serve_command: str | None = None
    """Starts the winner."""

    @property
    def is_simulated(self) -> bool:
        """Its trials ran on a cost model."""
        return ((self.scenario_resolved or {}).get("target") or {}).get("kind") == "simulated"

    @property
    def pair(self) -> tuple[str, str] | None:
        """The two parameters to be seen together: the strongest interaction shown, else the two most important ones;
        None where fewer than two were varied."""
        if self.interactions and self.interactions[0].is_shown:
            return self.interactions[0].names
        varied = [name for name in self.space if len({t.params[name] for t in self.trials if name in t.params}) > 1]
        ranked = sorted(varied, key=lambda name: -(self.importances or {}).get(name, 0.0))
        return (ranked[0], ranked[1]) if len(ranked) > 1 else None

    def choices_of(self, name: str) -> list[Any] | None:
        """A parameter's values side by side, those tried and those that could be, in the order of an axis; None for a
        number on a scale."""
        dimension = self.space[name]
        tried = list(dict.fromkeys(trial.params[name] for trial in self.trials if name in trial.params))
        if dimension.choices is None and all(map(_is_number, tried)):
            return None
        every = list(dict.fromkeys([*(dimension.choices or ()), *tried]))
        return sorted(every) if all(map(_is_number, every)) else every

    @property
    def rival(self) -> TrialFacts | None:
        """What is compared with the default: the best, or where nothing may win the nearest miss."""
        return self.best if self.best is not None else self.nearest_miss

    @property
    def nearest_miss(self) -> TrialFacts | None:
        """Of the trials that miss the SLO, the one that misses it least."""
        able = [trial for trial in self.trials if trial.is_scored and trial.missed and trial.verdict == "VALID"]
        sign = -1.0 if self.maximize else 1.0
        return min(able, key=lambda t: (max(t.constraints.values()), sign * (t.objective or 0.0)), default=None)

    @property
    def compared(self) -> tuple[tuple[str, TrialFacts], ...]:
        """Default and rival with their names; one entry where there is only one or both are the same trial."""
        default, rival = self.default, self.rival
        if default is not None and rival is not None and rival.number == default.number:
            return ((f"default = {self.rival_name}" if self.best is not None else "default", default),)
        found = [] if default is None else [("default", default)]
        return tuple(found if rival is None else [*found, (self.rival_name, rival)])

    @property
    def rival_name(self) -> str:
        """`best (trial 7)`, with several objectives `knee (trial 7)`; `nearest miss (trial 2)`."""
        rival = self.rival
        found = "knee" if self.pareto else "best"
        if rival is None:
            return found
        return f"{found if self.best is not None else 'nearest miss'} (trial {rival.number})"

    @property
    def front(self) -> frozenset[int]:
        """Numbers of the trials that no other beats in every objective; empty with one objective."""
        return frozenset(int(each["number"]) for each in (self.pareto or {}).get("front") or ())

    def count(self, state: str) -> int:
        return sum(trial.state == state for trial in self.trials)

    def crowds_right(self, name: str) -> bool:
        """Most trials lie in the right half of a plot of `name` over output throughput: labels belong on the left."""
        seen = [t.value("output_tokens_per_s") or 0.0 for t in self.trials if t.value(name) is not None]
        middle = (min(seen) + max(seen)) / 2 if seen else 0.0
        return sum(value > middle for value in seen) * 2 > len(seen)

    def judged(self, head: str) -> str:
        """The statistic of a latency that the SLO speaks of, p95 otherwise: `ttft_s` -> `ttft_s.p95`."""
        for name in self.limits:
            metric, _, percent = name.partition("_p")
            if f"{metric}_s" == head and percent in ("50", "90", "95", "99"):
                return f"{head}.p{percent}"
        return f"{head}.p95"

    def limit_of(self, name: str) -> float | None:
        """The SLO limit in seconds of a statistic such as `ttft_s.p95`."""
        head, _, statistic = name.partition(".")
        found = self.limits.get(f"{head.removesuffix('_s')}_{statistic}")
        return None if found is None else found[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
