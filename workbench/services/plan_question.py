"""What `workbench plan` is asked, as a scenario on a simulated GPU."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.simulation import find_simulated_spec
from workbench.metrics.proportion import fewest_to_show
from workbench.scenario import Scenario, load_scenario
from workbench.scenario.arrivals import TraceArrivals
from workbench.scenario.loader import parse_scenario
from workbench.scenario.target import SimulatedTarget
from workbench.workload import generate_workload
from workbench.workload.rate import arrival_rate
from workbench.workload.records import ModelLimits, Workload

ENOUGH_REQUESTS = 600
"""To try parameters and alternatives with, and of a trace that is replayed several times."""
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
class PlanQuestion:
    """The flags, as given."""

    scenario: Path | None = None
    overrides: Sequence[str] = ()
    model: str | None = None
    gpu: str | None = None
    trace: Path | None = None
    rate_per_s: float | None = None
    slo: Sequence[str] = ()
    tensor_parallel_size: int = 1
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    routing: str | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    with_alternatives: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The question with everything it leaves open filled in."""

    scenario: Scenario
    """On one instance."""
    workload: Workload
    rate_per_s: float
    repeats: int = 1
    """Times that a trace too short to show the limits is replayed."""
    left_out: tuple[str, ...] = ()
    """Keys of the target that a plan of equal replicas does without."""
    door: Mapping[str, Any] = field(default_factory=dict)
    """What of it is deployed nevertheless, as `capacity.deployment` names it."""


def task_of(question: PlanQuestion) -> Task:
    """Raises `ScenarioError` or `ConfigError` for what cannot be planned."""
    scenario = _from_file(question) if question.scenario is not None else _from_flags(question)
    target = scenario.target
    if target.kind != "simulated" or target.gpu is None:
        raise ConfigError("plan: needs a target of kind simulated with a gpu. Set them in the scenario")
    if not scenario.has_slo:
        raise ConfigError("plan: needs limits to hold. Add --slo ttft_p95=2s, or an slo section in the scenario")
    spec = find_simulated_spec(scenario.model)
    limits = ModelLimits(max_model_len=scenario.engine.get("max_model_len") or spec.window, vocab_size=spec.vocab_size)
    scenario = _for_every_row(scenario)
    workload = generate_workload(scenario, limits, seed=scenario.seed)
    repeats, needed = 1, _fewest(scenario)
    if len(workload) < needed:
        if question.scenario is not None:
            raise ConfigError(
                f"plan: {len(workload)} requests cannot show that the limits hold, at least {needed} can. Raise "
                "workload.num_requests, or workload.arrivals.loop of a trace"
            )
        repeats = math.ceil(ENOUGH_REQUESTS / max(1, len(workload)))
        scenario = _looped(scenario, repeats)
        workload = generate_workload(scenario, limits, seed=scenario.seed)
    known = arrival_rate(workload)
    if known is None or workload.closed_loop is not None:
        raise ConfigError("plan: needs arrivals with a rate: a trace with times, poisson, ... (got none)")
    if "max_model_len" not in scenario.engine:
        longest = int((workload.num_prompt_tokens + workload.max_output_tokens).max())
        length = min(spec.window, math.ceil((longest + 1) / _LEN_STEP) * _LEN_STEP)
        scenario = scenario.model_copy(update={"engine": {**scenario.engine, "max_model_len": length}})
    rate = known if question.rate_per_s is None else question.rate_per_s
    plain = type(target)(kind="simulated", gpu=target.gpu)
    single = target.model_copy(update={name: getattr(plain, name) for name in _OF_THE_FLEET})
    left_out = tuple(name for name in _OF_THE_FLEET if getattr(target, name) != getattr(single, name))
    return Task(
        scenario=scenario.model_copy(update={"target": single}),
        workload=workload,
        rate_per_s=rate,
        repeats=repeats,
        left_out=left_out,
        door=_door(target),
    )


def _for_every_row(scenario: Scenario) -> Scenario:
    """Refuse rows over a window that was chosen, unless the scenario says what becomes of them; the model's own window
    is the longest there is."""
    if "max_model_len" not in scenario.engine or scenario.workload.over_long is not None:
        return scenario
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"over_long": "fail"})})


def _fewest(scenario: Scenario) -> int:
    """Requests that can show every limit on all of them, if none misses it."""
    if scenario.slo is None:
        return 1
    shares = [each.required_fraction(scenario.slo.attainment_target) for each in scenario.slo.limits]
    return max((fewest_to_show(share) for share in shares), default=1)


def _looped(scenario: Scenario, rounds: int) -> Scenario:
    workload = scenario.workload
    assert workload.arrivals is not None
    arrivals = workload.arrivals.model_copy(update={"loop": rounds})
    return scenario.model_copy(update={"workload": workload.model_copy(update={"arrivals": arrivals})})


def _door(target: SimulatedTarget) -> dict[str, Any]:
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


def with_rate(scenario: Scenario, rate_per_s: float) -> Scenario:
    """The scenario at another rate, where its arrivals say theirs; for the plan file."""
    arrivals: Any = scenario.workload.arrivals
    if isinstance(arrivals, TraceArrivals):
        changed = arrivals.model_copy(update={"rate": rate_per_s, "time_scale": 1.0})
    elif hasattr(arrivals, "rate"):
        changed = arrivals.model_copy(update={"rate": rate_per_s})
    else:
        return scenario
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"arrivals": changed})})


def _from_file(question: PlanQuestion) -> Scenario:
    assert question.scenario is not None
    named = [
        name
        for name in ("model", "gpu", "trace", "quantization", "kv_cache_dtype", "routing")
        if getattr(question, name) is not None
    ]
    named += [each.replace("_", "-") for each in question.settings]
    if named:
        raise ConfigError(f"--{named[0]}: the scenario says it. Use --set to change the scenario")
    slo = [f"slo.{text}" for text in question.slo]
    return load_scenario(question.scenario, [*question.overrides, *slo])


def _from_flags(question: PlanQuestion) -> Scenario:
    for name in ("model", "gpu", "trace"):
        if getattr(question, name) is None:
            raise ConfigError(f"--{name}: is missing. Give a scenario file, or --model, --gpu, --trace and --slo")
    if question.rate_per_s is None:
        raise ConfigError("--rate: is missing: the requests per second that the fleet must carry")
    target = {
        "kind": "simulated",
        "gpu": question.gpu,
        "tensor_parallel_size": question.tensor_parallel_size,
        "kv_cache_dtype": question.kv_cache_dtype,
    }
    if question.quantization is not None:
        target["quantization"] = question.quantization
    if question.routing is not None:
        target["routing"] = question.routing
    document = {
        "name": "plan",
        "model": question.model,
        "engine": dict(question.settings),
        "target": target,
        "workload": {"arrivals": {"kind": "trace", "path": str(question.trace)}},
        "slo": dict(_limit(text) for text in question.slo),
    }
    return parse_scenario(json.dumps(document), source="plan", overrides=question.overrides)


def _limit(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ConfigError(f"--slo: must be NAME=DURATION such as ttft_p95=2s (got {text!r})")
    return name.strip(), value.strip()
