"""`workbench plan`: tokens, memory, one instance's limits, replicas, cost and alternatives, each with its interval."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ConfigError
from engine.simulation import find_simulated_spec, uncounted
from workbench.capacity.deployment import DeploymentPlan
from workbench.capacity.kv_plan import Deployment, plan_kv
from workbench.plan.answer import Answer, Say, plan_deployment
from workbench.plan.comparison import Compared, Comparison, find_refusal, mark_pareto, vary_around, vary_hardware
from workbench.plan.day import parse_day, plan_day
from workbench.plan.fleets import run_fleets
from workbench.plan.instance import engine_params
from workbench.plan.question import PlanQuestion, list_hardware
from workbench.plan.replicas import fleet_of
from workbench.plan.task import Task, build_task, with_rate
from workbench.scenario import scenario_to_dict
from workbench.services.export import serve_command
from workbench.services.sweep_question import DEFAULT_SPACE
from workbench.services.targets import device_of
from workbench.store.provenance import collect_provenance
from workbench.workload.analysis import length_figures

_ONE_S, _SEVERAL_S = 27.0, 165.0
"""From the start: rows of a comparison that are not planned by then are said to be missing. For one deployment and for
several that were asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer, and all of it that is shown as JSON types."""

    answer: Answer
    values: Mapping[str, Any]

    def to_document(self) -> dict[str, Any]:
        """Build the plan file: the answer, what to deploy (`capacity.deployment`), and the scenario that simulates
        it."""
        values, task = self.values, self.answer.task
        replicas = values["replicas"]
        most = max(replicas["with_headroom"], replicas["with_spare"])
        admission = {
            **task.admission,
            "max_replicas": max(most, task.admission.get("max_replicas", most * 2)),
        }
        fleet = fleet_of(task, replicas["minimum"]).scenario
        if task.rate_per_s is not None:
            fleet = with_rate(fleet, task.rate_per_s)
        return {
            "name": task.scenario.name,
            "deployment": {
                **_deployment(self.answer).model_dump(exclude={"options", "pools", "rate_limit", "scale_at_waiting"}),
                "replicas": replicas["with_headroom"],
                "routing": {"kind": task.target.routing},
                **admission,
            },
            **{name: value for name, value in values.items() if name not in ("model", "gpu")},
            "scenario": {
                **_with_absolute_paths(scenario_to_dict(fleet), fleet.model_dump()),
                "search": {"space": dict(DEFAULT_SPACE)},
            },
            "provenance": collect_provenance(),
        }


def plan(question: PlanQuestion, say: Say) -> Plan:
    """Raises `ScenarioError`, `ConfigError` or `ModelLoadError` for what cannot be planned or never holds."""
    began = time.monotonic()
    task = build_task(question)
    day = parse_day(question.day)
    if day and task.rate_per_s is None:
        raise ConfigError("--day: goes with a load that has a rate, not with --concurrency")
    hardware = list_hardware(question, task.target)
    load = f"{task.concurrency} users" if task.rate_per_s is None else f"{task.rate_per_s:g}/s"
    say(f"{len(task.workload)} requests, target {load}")
    if question.is_comparison:
        rows = vary_hardware(hardware)
        say(f"comparing {len(rows)} deployments")
        found = _compare(task, rows, question, began + _SEVERAL_S, say)
        answer = min((each for _, each in found.answers), key=_usd_then_gpus)
        return Plan(answer=answer, values=_values(answer, found, (), day, question))
    task = task.on(hardware[0])
    refusal = find_refusal(task)
    if refusal is not None:
        raise ConfigError(f"plan: {refusal.hardware.name} does not fit: {refusal.reason} Remedy: {refusal.remedy}")
    comparison = None
    if question.with_alternatives:
        comparison = Comparison(task, list(vary_around(task)), question.prices, workers=1)
    try:
        answer = plan_deployment(task, question.prices, say)
        found = Compared()
        fleets: Sequence[Mapping[str, Any]] = ()
        if comparison is not None:
            until = max(began + _ONE_S, time.monotonic() + 1.0)
            fleets = run_fleets(answer.task, answer.replicas.minimum, time.monotonic() + (until - time.monotonic()) / 3)
            found = comparison.collect(until, say)
    finally:
        if comparison is not None:
            comparison.close()
    found.answers.insert(0, ("as planned", answer))
    return Plan(answer=answer, values=_values(answer, found, fleets, day, question))


def _compare(task: Task, rows: Sequence[Any], question: PlanQuestion, until: float, say: Say) -> Compared:
    """Plan every row that there is time for. Raises `ConfigError` where none can be planned."""
    comparison = Comparison(task, rows, question.prices, workers=2)
    try:
        found = comparison.collect(until, say)
    finally:
        comparison.close()
    if not found.answers:
        reasons = "; ".join(f"{each.hardware.name}: {each.reason} Remedy: {each.remedy}" for each in found.does_not_fit)
        raise ConfigError(f"plan: none of the {len(rows)} deployments carries the load. {reasons}")
    found.answers.sort(key=lambda item: _usd_then_gpus(item[1]))
    return found


def _usd_then_gpus(answer: Answer) -> tuple[float, int, float]:
    """The cheapest first; without a price, the fewest GPUs; of equals, the one that carries more."""
    usd = answer.cost["usd_per_hour"]
    return (float("inf") if usd is None else usd, answer.cost["num_gpus"], -answer.instance.rate_per_s.value)


def _values(
    answer: Answer,
    found: Compared,
    fleets: Sequence[Mapping[str, Any]],
    day: Sequence[tuple[float, float]],
    question: PlanQuestion,
) -> dict[str, Any]:
    task, instance = answer.task, answer.instance
    rows = [each.to_row(name) for name, each in found.answers]
    mark_pareto(rows)
    replicas = answer.replicas_to_dict()
    return {
        "basis": answer.basis.to_dict(),
        "basis_sentence": answer.basis.sentence,
        "model": task.scenario.model,
        "gpu": answer.hardware.gpu,
        "rate_per_s": answer.rate_per_s,
        "concurrency": task.concurrency,
        "requests": task.account.to_dict(),
        "limits": [each.to_dict() for each in answer.replicas.at_minimum.limits],
        "serve_command": serve_command(_deployment(answer)),
        "tokens": _tokens(task),
        "kv_budget": _kv_budget(task),
        "instance": {
            "sustainable_rate_per_s": instance.rate_per_s.to_dict(),
            "concurrency": instance.concurrency.to_dict(),
            "params": engine_params(instance.engine),
            "bottleneck": instance.bottleneck,
            "binds": instance.bottleneck,
            "at_sustainable_rate": dict(instance.latency),
            "tuned": [dict(each) for each in answer.tuning.tried],
        },
        "replicas": replicas,
        "cost": dict(answer.cost),
        "day": plan_day(answer, day, question.startup_s) if day else None,
        "alternatives": rows,
        "does_not_fit": [each.to_dict() for each in found.does_not_fit],
        "not_planned": list(found.not_planned),
        "fleets": [dict(each) for each in fleets],
        "warnings": list(_warnings(answer)),
    }


def _deployment(answer: Answer) -> DeploymentPlan:
    """Describe one instance as export deploys it."""
    target, params = answer.task.target, engine_params(answer.instance.engine)
    return DeploymentPlan(
        model=answer.task.scenario.model,
        gpu=answer.hardware.gpu,
        tensor_parallel_size=target.tensor_parallel_size,
        quantization=target.quantization,
        kv_cache_dtype=target.kv_cache_dtype,
        vllm_version=target.vllm_version,
        engine={name: value for name, value in params.items() if name != "num_blocks"},
    )


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


def _kv_budget(task: Task) -> dict[str, Any]:
    engine = {name: value for name, value in task.scenario.engine.items() if name != "max_model_len"}
    deployment = Deployment(spec=find_simulated_spec(task.scenario.model), device=device_of(task.target), engine=engine)
    sized = plan_kv(deployment, max_model_len=task.scenario.engine["max_model_len"])
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


def _warnings(answer: Answer) -> Iterator[str]:
    task = answer.task
    yield from task.scenario.doubts
    yield from uncounted(find_simulated_spec(task.scenario.model), device_of(task.target))
    if task.left_out:
        names = ", ".join(f"target.{name}" for name in task.left_out)
        yield f"equal replicas serve everybody here: {names} not in these figures. `workbench run` has them"
    if "deadline_s" in task.left_out:
        yield "target.deadline_s is not deployed: the exported router has no limit on the wait for a first step"
    if task.repeats > 1:
        yield (
            f"the load has {task.num_offered // task.repeats} requests, too few to show the limits: it is replayed "
            f"{task.repeats} times, and equal prompts may hit the prefix cache. Give a longer trace"
        )
    if task.num_offered > len(task.workload):
        yield (
            f"simulated with the first {len(task.workload):,} of {task.num_offered:,} requests, offered at the rate "
            "asked for. Cut the trace to the hours that matter (workload.arrivals.window_start)"
        )
    if len({*task.workload.num_prompt_tokens.tolist()}) == 1 and len({*task.workload.max_output_tokens.tolist()}) == 1:
        yield "all requests have the same lengths: real loads vary and need more. Give --cv (1 is usual), or a trace"
    if answer.replicas.floor is not None:
        yield answer.replicas.explanation
    if answer.replicas.between is not None:
        low, high = answer.replicas.between
        yield f"only the seed of the load decides between {low} and {high} replicas: take {high}"


def _with_absolute_paths(shown: Any, value: Any) -> Any:
    """Name the files in `shown`, the JSON types of `value`, so that the plan can be read from any folder."""
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, dict):
        return {name: _with_absolute_paths(shown[name], each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_absolute_paths(one, each) for one, each in zip(shown, value, strict=True)]
    return shown
