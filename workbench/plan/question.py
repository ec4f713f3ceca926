"""Read what `workbench plan` is asked: a scenario file, or a model, GPUs and a load in flags."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.catalog import find_gpu, list_gpus
from engine.errors import ConfigError
from workbench.scenario import Scenario, load_scenario
from workbench.scenario.loader import parse_scenario
from workbench.scenario.target import SimulatedTarget

ALL_GPUS = "all"
_UNQUANTIZED = ("none", "bf16", "bfloat16", "fp16")
_LOAD_SPAN_S = 120.0
"""Time that a load spans which is given by lengths alone, at its rate."""
_FEWEST_REQUESTS, MOST_REQUESTS = 600, 6000
"""That a load given by lengths has; the most that is simulated of any load."""
_ROUNDS = 20
"""Requests of each user, where a load is given by the number of users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One row of a comparison."""

    gpu: str
    """Catalogue id."""
    tensor_parallel_size: int
    quantization: str | None
    """Of the weights; None: 16 bits."""

    @property
    def name(self) -> str:
        count = f"{self.tensor_parallel_size} x " if self.tensor_parallel_size > 1 else ""
        return f"{count}{self.gpu}" + (f", {self.quantization} weights" if self.quantization else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """The flags, as given."""

    scenario: Path | None = None
    overrides: Sequence[str] = ()
    model: str | None = None
    gpus: Sequence[str] = ()
    """Names, or `all`; empty: the scenario's."""
    tensor_parallel_sizes: Sequence[int] = ()
    quantizations: Sequence[str] = ()
    """`none` or a weight type; empty: what the model's name states."""
    trace: Path | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cv: float = 0.0
    """Coefficient of variation of both lengths, where they are given by their means."""
    rate_per_s: float | None = None
    concurrency: int | None = None
    """Users who each wait for an answer before they ask again, instead of a rate."""
    slo: Sequence[str] = ()
    """`ttft_p95=2s`; of one class of a scenario `chat.ttft_p95=2s`."""
    kv_cache_dtype: str | None = None
    max_model_len: int | None = None
    vllm_version: str | None = None
    routing: str | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    day: Sequence[str] = ()
    """`HOUR=RATE`: from that hour on the fleet carries that many requests per second."""
    startup_s: float = 120.0
    """From asking for a replica to its first answer."""
    with_alternatives: bool = True

    @property
    def is_comparison(self) -> bool:
        """Several deployments are asked about."""
        several = (self.gpus, self.tensor_parallel_sizes, self.quantizations)
        return any(len(each) > 1 for each in several) or ALL_GPUS in self.gpus


def read_scenario(question: PlanQuestion) -> Scenario:
    """Build the scenario of one instance, on the first hardware asked about. Raises `ScenarioError` or `ConfigError`
    for what cannot be planned."""
    scenario = _from_file(question) if question.scenario is not None else _from_flags(question)
    if scenario.target.kind != "simulated" or scenario.target.gpu is None:
        raise ConfigError("plan: needs a target of kind simulated with a gpu. Set them in the scenario")
    if not scenario.has_slo:
        raise ConfigError("plan: needs limits to hold. Add --slo ttft_p95=2s, or an slo section in the scenario")
    return scenario


def list_hardware(question: PlanQuestion, target: SimulatedTarget) -> tuple[Hardware, ...]:
    """List the deployments that are asked about, each GPU once whatever its spellings. The scenario's `target` fills
    what no flag says. Raises `ConfigError` for an unknown GPU or weight type."""
    gpus = list(dict.fromkeys(find_gpu(name).id for name in question.gpus or [str(target.gpu)] if name != ALL_GPUS))
    if ALL_GPUS in question.gpus:
        gpus = [gpu.id for gpu in list_gpus()]
    weights: list[str | None] = [target.quantization]
    if question.quantizations:
        weights = list(dict.fromkeys(parse_quantization(text) for text in question.quantizations))
    sizes = list(dict.fromkeys(question.tensor_parallel_sizes)) or [target.tensor_parallel_size]
    return tuple(
        Hardware(gpu=gpu, tensor_parallel_size=size, quantization=weight)
        for gpu in gpus
        for size in sizes
        for weight in weights
    )


def parse_quantization(text: str) -> str | None:
    """Read `none` or a weight type. Raises `ConfigError`."""
    if text.lower() in _UNQUANTIZED:
        return None
    if text.lower() not in ("fp8", "int8", "int4"):
        raise ConfigError(f"--quantization: must be none, fp8, int8 or int4 (got {text!r})")
    return text.lower()


def _from_file(question: PlanQuestion) -> Scenario:
    assert question.scenario is not None
    stated = ("model", "trace", "input_tokens", "output_tokens", "concurrency", "kv_cache_dtype", "routing")
    for name in (*stated, "max_model_len", "vllm_version"):
        if getattr(question, name) is not None:
            raise ConfigError(f"--{_FLAGS.get(name, name)}: the scenario says it. Use --set to change the scenario")
    return load_scenario(question.scenario, [*question.overrides, *(_slo_override(text) for text in question.slo)])


_FLAGS = {
    "input_tokens": "isl", "output_tokens": "osl", "kv_cache_dtype": "kv-dtype", "max_model_len": "max-model-len",
    "vllm_version": "vllm-version",
}  # fmt: skip


def _slo_override(text: str) -> str:
    """`ttft_p95=2s` -> an override of the scenario's SLO; `CLASS.ttft_p95=2s` -> of a class's."""
    name, value = _limit(text)
    kind, dot, limit = name.rpartition(".")
    return f"workload.classes.{kind}.slo.{limit}={value}" if dot else f"slo.{name}={value}"


def _from_flags(question: PlanQuestion) -> Scenario:
    is_by_lengths = question.input_tokens is not None or question.output_tokens is not None
    for name, value in (("model", question.model), ("gpu", question.gpus)):
        if not value:
            raise ConfigError(f"--{name}: is missing. Give a scenario file, or --model, --gpu, a load and --slo")
    if is_by_lengths == (question.trace is not None):
        raise ConfigError("plan: needs one load: --trace FILE, or --isl and --osl with their means")
    if is_by_lengths and (question.input_tokens is None or question.output_tokens is None):
        raise ConfigError("--isl and --osl go together: mean tokens of a prompt and of an answer")
    if (question.rate_per_s is None) == (question.concurrency is None):
        raise ConfigError("plan: needs --rate, the requests per second that the fleet must carry, or --concurrency")
    if question.concurrency is not None and not is_by_lengths:
        raise ConfigError("--concurrency: goes with --isl and --osl; a trace has arrival times. Use --rate")
    target = {
        "kind": "simulated",
        "gpu": question.gpus[0] if question.gpus[0] != ALL_GPUS else list_gpus()[0].id,
        "tensor_parallel_size": question.tensor_parallel_sizes[0] if question.tensor_parallel_sizes else 1,
        "kv_cache_dtype": question.kv_cache_dtype,
        "routing": question.routing,
        "vllm_version": question.vllm_version,
    }
    weights = {"quantization": parse_quantization(question.quantizations[0])} if question.quantizations else {}
    document = {
        "name": "plan",
        "model": question.model,
        "engine": {} if question.max_model_len is None else {"max_model_len": question.max_model_len},
        "target": {name: value for name, value in target.items() if value is not None} | weights,
        "workload": _lengths_only(question) if is_by_lengths else _trace_only(question),
        "slo": dict(_limit(text) for text in question.slo),
    }
    return parse_scenario(json.dumps(document), source="plan", overrides=question.overrides)


def _trace_only(question: PlanQuestion) -> dict[str, Any]:
    return {"arrivals": {"kind": "trace", "path": str(question.trace)}}


def _lengths_only(question: PlanQuestion) -> dict[str, Any]:
    kind = {
        "name": "requests",
        "input_tokens": _length(int(question.input_tokens or 0), question.cv),
        "output_tokens": _length(int(question.output_tokens or 0), question.cv),
    }
    if question.concurrency is not None:
        wanted = question.concurrency * _ROUNDS
        arrivals: dict[str, Any] = {"kind": "closed_loop", "concurrency": question.concurrency}
    else:
        wanted = math.ceil((question.rate_per_s or 0.0) * _LOAD_SPAN_S)
        arrivals = {"kind": "poisson", "rate": question.rate_per_s}
    count = min(max(wanted, _FEWEST_REQUESTS), MOST_REQUESTS)
    return {"num_requests": max(count, question.concurrency or 0), "arrivals": arrivals, "classes": [kind]}


def _length(mean: int, cv: float) -> int | dict[str, Any]:
    """A fixed length, or a lognormal one with this mean and coefficient of variation."""
    if cv <= 0:
        return mean
    return {"kind": "lognormal", "mean": mean, "sigma": math.sqrt(math.log(1.0 + cv**2)), "max": mean * 16}


def _limit(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ConfigError(f"--slo: must be NAME=DURATION such as ttft_p95=2s (got {text!r})")
    return name.strip(), value.strip()
