"""What one plan is made for: a scenario on one instance, its requests, and the load that the fleet must carry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.errors import ConfigError
from engine.simulation import find_simulated_spec
from workbench.metrics.attainment import SloPolicy
from workbench.metrics.proportion import fewest_to_show
from workbench.plan.question import MOST_REQUESTS, Hardware, PlanQuestion, read_scenario
from workbench.scenario import Scenario
from workbench.scenario.arrivals import ClosedLoop, PoissonArrivals, TraceArrivals
from workbench.scenario.target import SimulatedTarget
from workbench.services.rate_trial import NEXT_DRAW
from workbench.workload import generate_workload
from workbench.workload.account import ImportAccount
from workbench.workload.rate import arrival_rate, at_rate, is_recorded, lengthened, shortened
from workbench.workload.records import ModelLimits, Workload

ENOUGH_REQUESTS = 600
"""To try parameters with, and of a trace that is replayed several times."""
_MOST_DRAWS = 5
_REQUESTS_OF_DRAWS = 6000
"""Of all draws of a load together: long loads show the same whatever the seed."""
_LEN_STEP = 1024
_OF_THE_FLEET = (
    "replicas",
    "pools",
    "link",
    "autoscaling",
    "failures",
    "queue_limit",
    "rate_limit",
    "deadline_s",
)
"""What stands in front of the instance that is planned, or happens to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The question with everything it leaves open filled in."""

    scenario: Scenario
    """On one instance."""
    limits: ModelLimits
    workload: Workload
    """Open-loop requests with a rate, for the limits of one instance."""
    rate_per_s: float | None
    """That the fleet must carry; None where users ask instead."""
    concurrency: int | None = None
    """Users who each wait for an answer before they ask again; None: requests arrive at a rate."""
    account: ImportAccount
    """Of the rows that the load was read from."""
    repeats: int = 1
    """Times that a trace too short to show the limits is replayed."""
    num_offered: int
    """Requests of the load; more than are simulated where there are very many."""
    left_out: tuple[str, ...] = ()
    """Keys of the target that a plan of equal replicas does without."""
    admission: Mapping[str, Any] = field(default_factory=dict)
    """What of it is deployed nevertheless, as `capacity.deployment` names it."""

    @property
    def target(self) -> SimulatedTarget:
        assert isinstance(self.scenario.target, SimulatedTarget)
        return self.scenario.target

    @property
    def policy(self) -> SloPolicy:
        return SloPolicy.from_scenario(self.scenario)

    @property
    def quick(self) -> Workload:
        """The first requests, to try parameters with."""
        return shortened(self.workload, ENOUGH_REQUESTS)

    @property
    def mean_tokens(self) -> float:
        """Prompt and answer of a request."""
        return float((self.workload.num_prompt_tokens + self.workload.max_output_tokens).mean())

    @property
    def num_draws(self) -> int:
        """Loads of other seeds that a fleet is tried with; 1 where a seed changes nothing, or nothing that matters."""
        if is_recorded(self.scenario):
            return 1
        return max(1, min(_MOST_DRAWS, _REQUESTS_OF_DRAWS // len(self.workload)))

    @property
    def seed(self) -> int:
        return self.scenario.seed

    def on(self, hardware: Hardware) -> Task:
        """Return the same task for other hardware."""
        values = {
            "gpu": hardware.gpu,
            "tensor_parallel_size": hardware.tensor_parallel_size,
            "quantization": hardware.quantization,
        }
        if hardware.gpu != self.target.gpu:
            values["profile"] = None
        return self.with_target(values)

    def with_target(self, values: Mapping[str, Any]) -> Task:
        """Return the task with other values of the target. Raises `ValueError` for what the target cannot have."""
        target = SimulatedTarget.model_validate(self.target.model_dump() | dict(values))
        return replace(self, scenario=self.scenario.model_copy(update={"target": target}))

    def with_engine(self, values: Mapping[str, Any]) -> Task:
        """Return the task with engine parameters on top."""
        engine = {**self.scenario.engine, **values}
        return replace(self, scenario=self.scenario.model_copy(update={"engine": engine}))

    def open_draw(self, number: int) -> Workload:
        """Return the open-loop requests in the draw of that number; 0 is the workload itself."""
        if number == 0:
            return self.workload
        drawn = generate_workload(_open(self.scenario), self.limits, seed=self.seed + number * NEXT_DRAW)
        return shortened(drawn, MOST_REQUESTS)

    def fleet_load(self, scale: float, number: int) -> Workload:
        """Return what arrives at the fleet, `scale` times as much as asked for, in the draw of that number."""
        if self.concurrency is None:
            assert self.rate_per_s is not None
            return at_rate(self.open_draw(number), self.rate_per_s * scale)
        users = ClosedLoop(kind="closed_loop", concurrency=max(1, math.ceil(self.concurrency * scale)))
        scenario = _with_arrivals(self.scenario, users)
        return generate_workload(scenario, self.limits, seed=self.seed + number * NEXT_DRAW)


def build_task(question: PlanQuestion) -> Task:
    """Raises `ScenarioError` or `ConfigError` for what cannot be planned."""
    scenario = read_scenario(question)
    target = scenario.target
    assert isinstance(target, SimulatedTarget)
    spec = find_simulated_spec(scenario.model)
    limits = ModelLimits(max_model_len=scenario.engine.get("max_model_len") or spec.window, vocab_size=spec.vocab_size)
    scenario = _for_every_row(scenario)
    concurrency = _concurrency(scenario)
    workload = generate_workload(_open(scenario), limits, seed=scenario.seed)
    account = workload.summary.account
    repeats, needed = 1, _fewest(scenario)
    if len(workload) < needed:
        if question.scenario is not None:
            raise ConfigError(
                f"plan: {len(workload)} requests cannot show that the limits hold, at least {needed} can. Raise "
                "workload.num_requests, or workload.arrivals.loop of a trace"
            )
        repeats = math.ceil(max(ENOUGH_REQUESTS, needed) / max(1, len(workload)))
        scenario = lengthened(scenario, repeats)
        workload = generate_workload(_open(scenario), limits, seed=scenario.seed)
    known = arrival_rate(workload)
    if known is None:
        raise ConfigError("plan: needs arrivals with a rate: a trace with times, poisson, ... (got none)")
    rate = None if concurrency is not None else known if question.rate_per_s is None else question.rate_per_s
    single = _without_fleet(target)
    return Task(
        scenario=_with_window(scenario, workload, limits).model_copy(update={"target": single}),
        limits=limits,
        workload=shortened(workload, MOST_REQUESTS),
        rate_per_s=rate,
        concurrency=concurrency,
        account=account,
        repeats=repeats,
        num_offered=len(workload),
        left_out=tuple(name for name in _OF_THE_FLEET if getattr(target, name) != getattr(single, name)),
        admission=_admission(target),
    )


def with_rate(scenario: Scenario, rate_per_s: float) -> Scenario:
    """Return the scenario at another rate, where its arrivals say theirs; for the plan file."""
    arrivals: Any = scenario.workload.arrivals
    if isinstance(arrivals, TraceArrivals):
        changed = arrivals.model_copy(update={"rate": rate_per_s, "time_scale": 1.0})
    elif hasattr(arrivals, "rate"):
        changed = arrivals.model_copy(update={"rate": rate_per_s})
    else:
        return scenario
    return _with_arrivals(scenario, changed)


def _concurrency(scenario: Scenario) -> int | None:
    arrivals = scenario.workload.arrivals
    return arrivals.concurrency if isinstance(arrivals, ClosedLoop) else None


def _open(scenario: Scenario) -> Scenario:
    """The scenario with requests that arrive by themselves; how fast is set later."""
    users = _concurrency(scenario)
    return scenario if users is None else _with_arrivals(scenario, PoissonArrivals(kind="poisson", rate=float(users)))


def _with_arrivals(scenario: Scenario, arrivals: Any) -> Scenario:
    workload = scenario.workload.model_copy(update={"arrivals": arrivals})
    return scenario.model_copy(update={"workload": workload})


def _for_every_row(scenario: Scenario) -> Scenario:
    """Refuse rows over a window that was chosen, unless the scenario says what becomes of them; the model's own window
    is the longest there is."""
    if "max_model_len" not in scenario.engine or scenario.workload.over_long is not None:
        return scenario
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"over_long": "fail"})})


def _with_window(scenario: Scenario, workload: Workload, limits: ModelLimits) -> Scenario:
    """A window for the longest request, where the scenario has none."""
    if "max_model_len" in scenario.engine:
        return scenario
    longest = int((workload.num_prompt_tokens + workload.max_output_tokens).max())
    assert limits.max_model_len is not None  # the catalogue's, or refused
    length = min(limits.max_model_len, math.ceil((longest + 1) / _LEN_STEP) * _LEN_STEP)
    return scenario.model_copy(update={"engine": {**scenario.engine, "max_model_len": length}})


def _fewest(scenario: Scenario) -> int:
    """Requests that can show every limit on all of them, if none misses it."""
    shares = [
        limit.required_fraction(slo.attainment_target)
        for slo in (scenario.slo, *(kind.slo for kind in scenario.workload.classes))
        if slo is not None
        for limit in slo.limits
    ]
    return max((fewest_to_show(share) for share in shares), default=1)


def _without_fleet(target: SimulatedTarget) -> SimulatedTarget:
    plain = SimulatedTarget(kind="simulated", gpu=target.gpu)
    return target.model_copy(update={name: getattr(plain, name) for name in _OF_THE_FLEET})


def _admission(target: SimulatedTarget) -> dict[str, Any]:
    """Limits and scaling that a deployment can have: buckets of classes are none of them."""
    found: dict[str, Any] = {}
    rate = target.rate_limit
    if rate is not None and rate.per != "class":
        found["rate_limit"] = {
            "requests_per_s": rate.requests_per_s, "burst": rate.burst, "per_client": rate.per == "client"
        }  # fmt: skip
    if target.queue_limit is not None:
        found["rate_limit"] = {**found.get("rate_limit", {}), "queue_limit": target.queue_limit}
    if target.autoscaling is not None:
        found["scale_at_waiting"] = max(1, round(target.autoscaling.waiting_per_replica))
        found["max_replicas"] = target.autoscaling.max_replicas
    return found
