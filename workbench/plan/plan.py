"""`workbench plan`: tokens, memory, one instance's limits, replicas, cost and alternatives, each with its interval."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.catalog import find_gpu
from engine.errors import ConfigError
from engine.simulation import find_simulated_spec
from workbench.capacity.cost import cost_of
from workbench.capacity.kv_plan import Deployment, plan_kv
from workbench.plan.alternatives import Comparison
from workbench.plan.instance import Capacity, CapacityProber, capacity_of, engine_params, policy_of
from workbench.plan.question import ENOUGH_REQUESTS, PlanQuestion, Task, task_of, with_rate
from workbench.plan.replicas import HEADROOM, SHORT_S, FleetSizer, fleet_of, guess_of
from workbench.records.figures import Figure, SpeedError, speed_error
from workbench.scenario import scenario_to_dict
from workbench.scenario.schema import Scenario
from workbench.scenario.target import SimulatedTarget
from workbench.services.targets import build_target, device_of
from workbench.store.provenance import collect_provenance
from workbench.workload.analysis import length_figures
from workbench.workload.rate import shortened

_BUDGETS = (512, 1024, 4096, 8192)
"""max_num_batched_tokens to try beside the GPU's default."""
_PATIENCE_S = 45.0
"""From the start; alternatives that are not estimated by then are said to be missing."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer, as JSON types, and the scenario of one instance."""

    scenario: Scenario
    values: Mapping[str, Any]
    door: Mapping[str, Any] = field(default_factory=dict)
    """Limits and scaling of the scenario's target, for the deployment."""

    def to_document(self) -> dict[str, Any]:
        """The plan file: the answer, what to deploy (`capacity.deployment`), and the scenario that simulates it."""
        values, target = self.values, _target(self.scenario)
        replicas = values["replicas"]
        most = max(replicas["with_headroom"], replicas["n_minus_1"])
        door = {**self.door, "max_replicas": max(most, self.door.get("max_replicas", most * 2))}
        fleet = with_rate(fleet_of(self.scenario, replicas["minimum"]), values["rate_per_s"])
        return {
            "name": self.scenario.name,
            "deployment": {
                "model": self.scenario.model,
                "gpu": values["gpu"],
                "tensor_parallel_size": target.tensor_parallel_size,
                "quantization": target.quantization,
                "kv_cache_dtype": target.kv_cache_dtype,
                "engine": {name: value for name, value in values["instance"]["params"].items() if name != "num_blocks"},
                "replicas": replicas["with_headroom"],
                "routing": {"kind": target.routing},
                **door,
            },
            **{name: value for name, value in values.items() if name not in ("model", "gpu")},
            "scenario": _with_absolute_paths(scenario_to_dict(fleet), fleet.model_dump()),
            "provenance": collect_provenance(),
        }


def _with_absolute_paths(shown: Any, value: Any) -> Any:
    """`shown`, the JSON types of `value`, with its files named so that the plan can be read from any folder."""
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, dict):
        return {name: _with_absolute_paths(shown[name], each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_absolute_paths(one, each) for one, each in zip(shown, value, strict=True)]
    return shown


def plan(question: PlanQuestion, say: Say) -> Plan:
    """Raises `ScenarioError`, `ConfigError` or `ModelLoadError` for what cannot be planned or never holds."""
    began = time.monotonic()
    task = task_of(question)
    say(f"{len(task.workload)} requests, target {task.rate_per_s:g}/s")
    params, tried = _tuned(task, say)
    scenario = task.scenario.model_copy(update={"engine": {**task.scenario.engine, **params}})
    comparison = _comparison(scenario, task, tried) if question.with_alternatives else None
    try:
        capacity, error, resolved = _instance(scenario, task, tried, say)
        target = _target(scenario)
        sizer = FleetSizer(scenario, task.workload, policy_of(scenario))
        minimum = sizer.minimum(task.rate_per_s, guess_of(task.rate_per_s, capacity.rate_per_s.value))
        more = task.rate_per_s / (1.0 - HEADROOM)
        guess = min(guess_of(minimum, 1.0 - HEADROOM), guess_of(more, capacity.rate_per_s.value))
        roomy = sizer.minimum(more, max(minimum, guess))
        say(f"replicas that hold: {minimum}, with headroom {roomy}")
        alternatives = []
        if comparison is not None:
            until = max(began + _PATIENCE_S, time.monotonic() + 1.0)
            alternatives = comparison.rows(minimum, capacity.rate_per_s, question.prices, until)
    finally:
        if comparison is not None:
            comparison.close()
    mean = _mean_tokens(task)
    gpu = find_gpu(str(target.gpu))
    values = {
        "model": scenario.model,
        "gpu": gpu.id,
        "rate_per_s": task.rate_per_s,
        "requests": task.workload.summary.account.to_dict(),
        "tokens": _tokens(task),
        "kv_budget": _kv_budget(scenario, task),
        "instance": {
            "sustainable_rate_per_s": capacity.rate_per_s.to_dict(),
            "concurrency": capacity.concurrency.to_dict(),
            "params": resolved,
            "binds": capacity.binds,
            "at_sustainable_rate": dict(capacity.latency),
            "tuned": tried,
        },
        "replicas": {
            "minimum": minimum,
            "with_headroom": roomy,
            "n_minus_1": minimum + 1,
            **_range(minimum, task.rate_per_s, capacity.rate_per_s),
            "headroom": HEADROOM,
            "routing": target.routing,
            "source": f"fleets simulated here at the target rate; low to high by {error.source}",
            "simulated": [run.to_dict() for _, run in sorted(sizer.runs.items())],
        },
        "cost": cost_of(gpu, minimum * target.tensor_parallel_size, task.rate_per_s * mean, question.prices),
        "alternatives": alternatives,
        "warnings": _warnings(task, capacity),
    }
    return Plan(scenario=scenario, values=values, door=task.door)


def _range(minimum: int, rate_per_s: float, instance: Figure) -> dict[str, int | None]:
    """Replicas at both ends of the instance's interval, by division; the simulated minimum lies between them."""
    return {
        "low": min(minimum, guess_of(rate_per_s, instance.high)),
        "high": None if instance.low <= 0 else max(minimum, guess_of(rate_per_s, instance.low)),
    }


def _tuned(task: Task, say: Say) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Parameters that carry most on a shortened workload: the GPU's defaults, or another token budget."""
    quick = shortened(task.workload, ENOUGH_REQUESTS)
    policy = policy_of(task.scenario)
    prober = CapacityProber(target=build_target(task.scenario, {}), workload=quick, policy=policy)
    best = prober.bracket(task.rate_per_s).passed
    tried: list[dict[str, Any]] = [
        {"params": {}, "rate_per_s": best, "source": f"default, first {len(quick)} requests"}
    ]
    chosen: dict[str, Any] = {}
    if "max_num_batched_tokens" in task.scenario.engine:
        return chosen, tried
    for budget in _BUDGETS:
        params = {"max_num_batched_tokens": budget}
        if "max_num_seqs" not in task.scenario.engine and budget < 1024:
            params["max_num_seqs"] = 256
        try:
            target = build_target(task.scenario, params)
        except ConfigError:
            continue
        other = CapacityProber(target=target, workload=quick, policy=policy)
        found: float | None = None
        if best is None or other.holds(best * 1.02):
            found = other.bracket(task.rate_per_s if best is None else best * 1.02).passed
        source = "tried, quick" if found else f"tried, quick: does not hold {(best or 0.0) * 1.02:.3g}/s"
        tried.append({"params": params, "rate_per_s": found, "source": source})
        if found is not None and (best is None or found > best):
            best, chosen = found, params
    if best is None:
        raise ConfigError(
            "plan: no rate holds the limits on one instance, however low: single requests miss them. Relax the SLO or "
            "choose a faster GPU"
        )
    settings = " ".join(f"{name}={value}" for name, value in chosen.items())
    say(f"tuned: {settings or 'defaults'}, about {best:.4g}/s")
    return chosen, tried


def _instance(
    scenario: Scenario, task: Task, tried: list[dict[str, Any]], say: Say
) -> tuple[Capacity, SpeedError, dict[str, Any]]:
    target = build_target(scenario, {})
    policy = policy_of(scenario)
    prober = CapacityProber(target=target, workload=task.workload, policy=policy)
    quick = CapacityProber(target=target, workload=shortened(task.workload, ENOUGH_REQUESTS), policy=policy)
    start = max(each["rate_per_s"] for each in tried if each["rate_per_s"])
    record = prober.at(start)[1]
    error = speed_error(record.engine["profile"])
    capacity = capacity_of(prober, quick, start, error)
    if capacity is None:
        raise ConfigError(
            "plan: no rate holds the limits on one instance with all requests. Relax the SLO or choose a faster GPU"
        )
    say(f"one instance sustains {capacity.rate_per_s.value:g}/s")
    return capacity, error, engine_params(record)


def _comparison(scenario: Scenario, task: Task, tried: list[dict[str, Any]]) -> Comparison:
    start = max(each["rate_per_s"] for each in tried if each["rate_per_s"])
    return Comparison(scenario, shortened(task.workload, ENOUGH_REQUESTS), start, task.rate_per_s, _mean_tokens(task))


def _tokens(task: Task) -> dict[str, Any]:
    work = task.workload
    figures = {
        "input": length_figures(work.num_prompt_tokens),
        "output": length_figures(work.max_output_tokens),
        "total": length_figures(work.num_prompt_tokens, work.max_output_tokens),
    }
    return {
        "num_requests": len(work),
        **{name: None if each is None else asdict(each) for name, each in figures.items()},
        "cv_of_gaps": work.summary.cv,
        "source": "counted in the workload",
    }


def _kv_budget(scenario: Scenario, task: Task) -> dict[str, Any]:
    target = _target(scenario)
    device = device_of(target)
    engine = {name: value for name, value in scenario.engine.items() if name != "max_model_len"}
    deployment = Deployment(spec=find_simulated_spec(scenario.model), device=device, engine=engine)
    sized = plan_kv(deployment, max_model_len=scenario.engine["max_model_len"])
    total = task.workload.num_prompt_tokens + task.workload.max_output_tokens
    return {
        "bytes_per_token": sized.geometry.bytes_per_token,
        "num_blocks": sized.num_blocks,
        "kv_tokens": sized.kv_tokens,
        "max_model_len": sized.max_model_len,
        "concurrency": {
            "at_max_model_len": sized.concurrency(sized.max_model_len),
            "at_mean": sized.concurrency(max(1, round(float(total.mean())))),
            "at_p95": sized.concurrency(max(1, round(float(np.percentile(total, 95))))),
        },
        "ledger_bytes": sized.ledger,
        "source": "arithmetic from the model's geometry and the GPU's data sheet",
    }


def _mean_tokens(task: Task) -> float:
    return float((task.workload.num_prompt_tokens + task.workload.max_output_tokens).mean())


def _target(scenario: Scenario) -> SimulatedTarget:
    assert isinstance(scenario.target, SimulatedTarget)
    return scenario.target


def _warnings(task: Task, capacity: Capacity) -> list[str]:
    fastest = max(task.rate_per_s, capacity.rate_per_s.value)
    span_s = len(task.workload) / fastest
    found = []
    if task.left_out:
        names = ", ".join(f"target.{name}" for name in task.left_out)
        found.append(
            f"a plan is of equal replicas that serve everybody: {names} not in these figures. `workbench run` has them"
        )
    if "deadline_s" in task.left_out:
        found.append("target.deadline_s is not deployed: the exported router has no limit on the wait for a first step")
    if task.repeats > 1:
        found.append(
            f"the trace has {len(task.workload) // task.repeats} requests, too few to show the limits: it is replayed "
            f"{task.repeats} times, and equal prompts may hit the prefix cache. Give a longer trace"
        )
    if span_s >= SHORT_S:
        return found
    return [
        *found,
        f"the workload's {len(task.workload)} requests last {span_s:.0f} s at {fastest:g}/s: too short to "
        "show a steady state. Give more requests (a longer trace, or loop)",
    ]
