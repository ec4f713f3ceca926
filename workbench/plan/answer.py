"""Plan one deployment with care: tune it, measure one instance, size the fleet, price it.

The plan itself and every row of its comparison are made by this one function, so a row is what a plan of its own says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.catalog import find_gpu
from workbench.capacity.cost import cost_of
from workbench.plan.instance import Instance, Tuning, engine_params, measure_instance, tune
from workbench.plan.question import Hardware
from workbench.plan.replicas import HEADROOM, Replicas, size_fleet
from workbench.plan.task import Task
from workbench.records.basis import Basis
from workbench.records.figures import four_digits
from workbench.workload.rate import remember_prompts

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A deployment with its numbers."""

    task: Task
    """With the parameters that were chosen."""
    tuning: Tuning
    instance: Instance
    replicas: Replicas
    cost: Mapping[str, Any]

    @property
    def rate_per_s(self) -> float:
        """That the fleet carries."""
        return self.task.rate_per_s or self.replicas.at_minimum.rate_per_s

    @property
    def hardware(self) -> Hardware:
        return hardware_of(self.task)

    @property
    def basis(self) -> Basis:
        return Basis.of("simulated", self.task.scenario.model, self.instance.engine)

    def to_row(self, name: str) -> dict[str, Any]:
        """A row of a comparison; JSON types only."""
        hardware, rate, hourly = self.hardware, self.instance.rate_per_s, self.cost["usd_per_hour"]
        price = self.cost["usd_per_gpu_hour"]
        per_gpu = rate.value / hardware.tensor_parallel_size
        return {
            "name": name,
            "gpu": hardware.gpu,
            "tp": hardware.tensor_parallel_size,
            "quantization": hardware.quantization,
            "replicas": self.replicas.minimum,
            "between": None if self.replicas.between is None else list(self.replicas.between),
            "num_gpus": self.cost["num_gpus"],
            "usd_per_hour": hourly,
            "usd_per_million_tokens": self.cost["usd_per_million_tokens"],
            "price": {"usd_per_gpu_hour": price, "source": self.cost["source"]},
            "sustainable_rate_per_s": rate.to_dict(),
            "sustainable_rate_per_gpu": four_digits(per_gpu),
            "requests_per_usd": None if not price else four_digits(per_gpu * 3600.0 / price),
            "params": engine_params(self.instance.engine),
            "latency": dict(self.replicas.at_minimum.latency),
            "limits": [each.to_dict() for each in self.replicas.at_minimum.limits],
            "source": f"planned as carefully as the plan itself; {rate.source}",
        }

    def replicas_to_dict(self) -> dict[str, Any]:
        """The plan's `replicas`; JSON types only."""
        found, instance = self.replicas, self.instance
        share_low = instance.rate_per_s.low / instance.rate_per_s.value
        share_high = instance.rate_per_s.high / instance.rate_per_s.value
        return {
            "minimum": found.minimum,
            "with_headroom": found.with_headroom,
            "with_spare": found.minimum + 1,
            "n_minus_1": found.minimum + 1,
            "low": min(found.minimum, _scaled(found.minimum, 1.0 / max(share_high, 1e-9))),
            "high": None if share_low <= 0 else max(found.minimum, _scaled(found.minimum, 1.0 / share_low)),
            "between": None if found.between is None else list(found.between),
            "floor": found.floor,
            "explanation": found.explanation,
            "headroom": HEADROOM,
            "routing": self.task.target.routing,
            "source": f"fleets simulated here at the target load; low to high by {instance.error.source}",
            "simulated": [run.to_dict() for run in found.runs],
        }


def hardware_of(task: Task) -> Hardware:
    """Name what a task is planned on."""
    target = task.target
    return Hardware(
        gpu=find_gpu(str(target.gpu)).id,
        tensor_parallel_size=target.tensor_parallel_size,
        quantization=target.quantization,
    )


def _scaled(replicas: int, factor: float) -> int:
    return max(1, -int(-(replicas * factor) // 1))


def plan_deployment(task: Task, prices: Mapping[str, float], say: Say = lambda _: None) -> Answer:
    """Plan the task on its own hardware. Raises `ConfigError` for what does not start or never holds the limits."""
    task = replace(task, workload=remember_prompts(task.workload))
    tuning = tune(task)
    settings = " ".join(f"{name}={value}" for name, value in tuning.params.items())
    say(f"parameters: {settings or 'the defaults'}")
    task = task.with_engine(tuning.params)
    instance = measure_instance(task, tuning.start_per_s)
    say(f"one instance sustains {instance.rate_per_s.value:g}/s")
    replicas = size_fleet(task, instance)
    say(f"replicas that hold: {replicas.minimum}, with headroom {replicas.with_headroom}")
    gpu = find_gpu(str(task.target.gpu))
    rate = task.rate_per_s or replicas.at_minimum.rate_per_s
    cost = cost_of(gpu, replicas.minimum * task.target.tensor_parallel_size, rate * task.mean_tokens, prices)
    return Answer(task=task, tuning=tuning, instance=instance, replicas=replicas, cost=cost)
