"""What a sweep varies and what it wants."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from engine.catalog import gpu_id
from engine.config import EngineConfig, engine_field_names
from engine.errors import ConfigError, suggest
from workbench.scenario.base import Count, Integer, Positive, Spec, WholeNumber, problem
from workbench.scenario.target import NAMED_ONLY, TargetSpec, broken_target_rule

SUSTAINABLE_RATE = "sustainable_rate_per_s"
"""The highest arrival rate at which every SLO holds in steady state; found by a search of its own in each trial."""
PER_GPU = "sustainable_rate_per_gpu"
"""The same, divided by the GPUs of the trial."""
USD_PER_MILLION = "usd_per_million_tokens"
"""Price of the GPUs over the tokens that they serve at the sustainable rate, by the catalogue's prices."""
RATE_OBJECTIVES = (SUSTAINABLE_RATE, PER_GPU, USD_PER_MILLION)
"""Objectives for which each trial searches its sustainable rate."""
RATES = (
    SUSTAINABLE_RATE,
    PER_GPU,
    "goodput_rps",
    "slo_attainment",
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
)
"""Objectives to maximise."""
LATENCIES = tuple(
    f"{metric}.{statistic}"
    for metric in ("ttft_s", "tpot_s", "itl_s", "e2el_s", "queue_s")
    for statistic in ("mean", "p50", "p90", "p95", "p99", "max")
)
"""Objectives to minimise."""

FLEET_FIELDS = ("replicas", "routing")
DEVICE_FIELDS = ("gpu", "tensor_parallel_size", "quantization", *FLEET_FIELDS)
"""Fields of a simulated target that a search may vary beside the engine's parameters."""

PARETO = "pareto"
"""Several objectives at once; the result is a front."""
PARETO_OBJECTIVES = {"output_tokens_per_s": True, "ttft_s.p95": False, "tpot_s.p95": False}
"""Name -> whether it is maximised."""

Number = Integer | Annotated[float, Field(strict=True)]


class Dimension(Spec):
    """One searched engine parameter: `{low, high}` with `log` or `step`, or `{choices}`."""

    low: Number | None = None
    high: Number | None = None
    log: bool = False
    """Search on a logarithmic scale."""
    step: Positive | None = None
    """Distance of neighbouring values, counted from `low`."""
    choices: tuple[bool | int | float | str | None, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> Dimension:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or self.step is not None:
                raise problem("choices", "excludes low, high, log and step. Keep one way")
            if not self.choices:
                raise problem("choices", "must not be empty")
            return self
        if self.low is None or self.high is None:
            raise problem("low" if self.low is None else "high", "is missing: give low and high, or choices")
        if self.high < self.low:
            raise problem("high", f"must be at least low ({self.low}, got {self.high})")
        if self.log and self.step is not None:
            raise problem("step", "excludes log: true. Keep one of them")
        if self.log and not self.low > 0:
            raise problem("low", f"must be over 0 with log: true (got {self.low})")
        if self.is_integer and self.step is not None and self.step != int(self.step):
            raise problem("step", f"must be a whole number between whole bounds (got {self.step})")
        return self

    @property
    def is_integer(self) -> bool:
        """True for a range of whole numbers."""
        return self.choices is None and isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def smallest(self) -> float | None:
        """The least number in it; None where there is none."""
        if self.choices is None:
            return self.low
        numbers = [choice for choice in self.choices if isinstance(choice, (int, float))]
        return min(numbers, default=None)

    @property
    def largest(self) -> float | None:
        """The greatest number in it; None where there is none."""
        if self.choices is None:
            return self.high
        numbers = [choice for choice in self.choices if isinstance(choice, (int, float))]
        return max(numbers, default=None)


class Confirm(Spec):
    """What is measured again once the search is over."""

    finalists: Annotated[Count, Field(le=20)] = 1
    """The best so many run again, beside the default."""
    repeats: Annotated[Count, Field(le=100)] = 3
    """Rounds, each on fresh requests; a gain needs two."""
    target: TargetSpec | None = None
    """Where; null: the scenario's target. Search on a simulated device, confirm on the engine."""
    num_requests: Count | None = None
    """Instead of the workload's: a short search, a longer confirmation."""

    @field_validator("target")
    @classmethod
    def _check_target(cls, value: TargetSpec | None) -> TargetSpec | None:
        if value is not None and value.kind == "endpoint" and value.launch is None:
            raise problem(
                "launch",
                "is missing: an endpoint's parameters are set where it is started. Give the command that starts it for "
                "a configuration, such as vllm serve {model} --port {port} {options}",
            )
        return value


class Search(Spec):
    """An Optuna study over engine parameters."""

    trials: Count = 16
    """Trials in all, the default configuration (trial 0) included."""
    sampler: Literal["tpe", "gp", "cmaes", "nsga2", "nsga3", "qmc", "random", "grid"] = "tpe"
    objective: str = ""
    """A rate (maximised) such as goodput_rps or a latency statistic (minimised) such as ttft_s.p95. Default with an
    SLO: sustainable_rate_per_s where the arrivals have a rate, else goodput_rps; without one: output_tokens_per_s.
    `pareto`: output_tokens_per_s against ttft_s.p95 and tpot_s.p95."""
    confirm: Confirm = Confirm()
    seed: WholeNumber | None = None
    """Seed of the sampler; null = the scenario's."""
    space: Annotated[dict[str, Dimension], Field(min_length=1)]
    """Engine parameter -> its values; on a simulated device also `gpu`, `tensor_parallel_size`, `quantization`,
    `replicas` and `routing`."""

    @property
    def maximize(self) -> bool:
        """With several objectives: the first of them."""
        return self.objective in (*RATES, PARETO)

    @property
    def objectives(self) -> dict[str, bool]:
        """Name -> whether it is maximised."""
        return dict(PARETO_OBJECTIVES) if self.objective == PARETO else {self.objective: self.maximize}

    @property
    def is_pareto(self) -> bool:
        return self.objective == PARETO

    @field_validator("space")
    @classmethod
    def _unify_gpus(cls, value: dict[str, Dimension]) -> dict[str, Dimension]:
        """Spellings of one GPU are one category."""
        gpus = value.get("gpu")
        if gpus is None or gpus.choices is None:
            return value
        choices = tuple(dict.fromkeys(gpu_id(each) if isinstance(each, str) else each for each in gpus.choices))
        return {**value, "gpu": gpus.model_copy(update={"choices": choices})}

    @model_validator(mode="after")
    def _check_sampler(self) -> Search:
        if self.is_pareto and self.sampler == "cmaes":
            raise problem("sampler", "cmaes knows one objective only. Use nsga2 or tpe with objective: pareto")
        return self

    @field_validator("objective")
    @classmethod
    def _check_objective(cls, value: str) -> str:
        known = (*RATES, USD_PER_MILLION, *LATENCIES, PARETO)
        if value and value not in known:
            raise problem("", f"is not an objective. {suggest(value, known)}")
        return value

    @model_validator(mode="after")
    def _check_confirm_target(self) -> Search:
        target = self.confirm.target
        if target is None or target.kind == "simulated":
            return self
        if target.kind == "endpoint":
            unheard = target.unheard(self.space)
            if unheard:
                raise problem("confirm.target.launch", unheard_rule(unheard[0]))
        elif fleet := [name for name in self.space if name in FLEET_FIELDS]:
            raise problem(
                "confirm.target", f"is one engine, but the search varies {fleet[0]}. Confirm on a simulated target"
            )
        return self

    @model_validator(mode="after")
    def _check_space(self) -> Search:
        for name, dimension in self.space.items():
            if name not in engine_field_names() and name not in DEVICE_FIELDS:
                known = (*engine_field_names(), *DEVICE_FIELDS)
                raise problem(f"space.{name}", f"is not an engine parameter. {suggest(name, known)}")
            ends = {f"choices.{index}": choice for index, choice in enumerate(dimension.choices or ())}
            if dimension.choices is None:
                ends = {"low": dimension.low, "high": dimension.high}
            for key, value in ends.items():
                rule = broken_target_rule(name, value) if name in DEVICE_FIELDS else broken_rule(name, value)
                if rule:
                    raise problem(f"space.{name}.{key}", rule)
        budget, seqs = self.space.get("max_num_batched_tokens"), self.space.get("max_num_seqs")
        if budget and seqs and (budget.largest or 0) < (seqs.smallest or 0):
            raise problem(
                "space.max_num_batched_tokens",
                f"must reach max_num_seqs somewhere (got at most {budget.largest} < {seqs.smallest})",
            )
        return self


def unheard_rule(name: str) -> str:
    """What is wrong with a `launch` that leaves a searched parameter out."""
    ways = "" if name in NAMED_ONLY else "{options} (for vLLM), {settings} (for workbench serve) or "
    return f"does not tell the server its {name}, which the search varies. Add {ways}{{{name}}}"


def broken_rule(name: str, value: object) -> str | None:
    """What is wrong with this value of this one engine parameter, whatever the others are."""
    if isinstance(value, (list, dict)):
        return "must be a single value"
    try:
        EngineConfig.from_dict({name: value})
    except ConfigError as error:
        blamed, _, rule = str(error).partition(": ")
        if blamed == name and " < " not in rule and " > " not in rule:
            return rule
        if blamed not in engine_field_names():
            return str(error)  # a size that cannot be read does not name its field
    return None
