"""`workbench budget`: what a model's memory looks like on a GPU, for lengths and utilisations side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import parse_bytes
from engine.errors import ConfigError, suggest
from engine.planned_config import stated_quantization
from engine.simulation import SimulatedDevice, find_simulated_spec, uncounted
from workbench.capacity.kv_plan import Deployment, KvPlan, plan_kv
from workbench.capacity.remedies import Remedy, find_remedies
from workbench.capacity.windowed import WindowedPlan, plan_windowed
from workbench.workload.account import ImportAccount

_WEIGHTS = {
    "bfloat16": None, "bf16": None, "float16": None, "fp16": None, "half": None,
    "fp8": "fp8", "int8": "int8", "w8a8": "int8", "int4": "int4", "awq": "int4", "gptq": "int4", "w4a16": "int4",
}  # fmt: skip
"""Spelling of `--dtype` -> the memory model's weight type; None = 16 bits."""
_KV = {
    "bfloat16": None, "bf16": None, "float16": None, "fp16": None, "half": None, "auto": None,
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
}  # fmt: skip
_USUAL_LENS = (4096, 8192, 16384, 32768, 65536, 131072)
_USUAL_UTILIZATIONS = (0.8, 0.85, 0.9, 0.92, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The flags of `workbench budget`, as given."""

    model: str
    gpu: str
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    kv_dtype: str = "auto"
    max_model_lens: Sequence[int] = ()
    """Empty: the model's own."""
    utilizations: Sequence[float] = ()
    """Empty: vLLM's default."""
    block_size: int = 16
    kv_bytes: str | None = None
    lengths: Path | None = None
    """File of requests or scenario whose total lengths matter."""
    settings: Mapping[str, Any] | None = None
    """Further engine parameters by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Prompt + output tokens of the requests that are expected."""

    source: str
    num_requests: int
    mean: float
    p95: float
    requests: ImportAccount
    """Of the rows of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The answer: one plan per pair of utilisation and length; the first utilisation with the longest length leads."""

    question: Question
    deployment: Deployment
    plans: tuple[KvPlan, ...]
    """Those asked for, lengths within utilisations."""
    table: tuple[KvPlan, ...]
    """With the usual lengths and utilisations where none were asked for."""
    lengths: Lengths | None
    remedies: tuple[Remedy, ...]
    """For the first that does not start."""
    warnings: tuple[str, ...]

    @property
    def refused(self) -> KvPlan | None:
        """The first that does not start."""
        return next((plan for plan in self.plans if not plan.starts), None)

    @property
    def shown(self) -> KvPlan:
        """The plan whose ledger is printed: the first refused, else that of the longest length asked for."""
        first = self.plans[0].gpu_memory_utilization
        same = [plan for plan in self.plans if plan.gpu_memory_utilization == first]
        return self.refused or max(same, key=lambda plan: plan.max_model_len)

    def to_json(self) -> dict[str, Any]:
        """The object of `workbench budget --json`. Bytes, blocks and tokens are per GPU."""
        plan, device, refused = self.shown, self.deployment.device, self.refused
        asked = sorted({item.max_model_len for item in self.plans})
        return {
            "model": self.question.model,
            "geometry": self.deployment.spec.name,
            "gpu": device.gpu.id,
            "num_gpus": plan.num_gpus,
            "dtype": device.precision.weights,
            "kv_dtype": device.precision.kv,
            "block_size": plan.geometry.block_size,
            "max_model_len": plan.max_model_len,
            "gpu_memory_utilization": plan.gpu_memory_utilization,
            "bytes_per_token": plan.geometry.bytes_per_token,
            "bytes_per_block": plan.geometry.bytes_per_block,
            "num_blocks": plan.num_blocks,
            "kv_tokens": plan.kv_tokens,
            "max_concurrency": {str(length): plan.concurrency(length) for length in asked},
            "concurrency": self.concurrency(plan),
            "lengths": None if self.lengths is None else asdict(self.lengths),
            "ledger_bytes": plan.ledger,
            "device_bytes": plan.device_bytes,
            "budget_bytes": plan.budget_bytes,
            "startup_lines": startup_lines(plan),
            "windowed": None if self.windowed is None else asdict(self.windowed),
            "starts": refused is None,
            "reason": None if refused is None else refused.problem,
            "remedies": [remedy.to_dict() for remedy in self.remedies],
            "warnings": list(self.warnings),
            "table": [_cell(item) for item in self.table],
        }

    @property
    def windowed(self) -> WindowedPlan | None:
        """The shown plan as vLLM counts it for a model with a sliding window; None for the others."""
        budget_tokens = self.deployment.config().scheduler.max_num_batched_tokens
        return plan_windowed(self.deployment.spec, self.shown, budget_tokens)

    def concurrency(self, plan: KvPlan) -> dict[str, float | None]:
        """Requests at once if all were as long as allowed, as the mean, as the 95th percentile."""
        known = self.lengths
        return {
            "at_max_model_len": plan.concurrency(plan.max_model_len),
            "at_mean": None if known is None else plan.concurrency(max(1, round(known.mean))),
            "at_p95": None if known is None else plan.concurrency(max(1, round(known.p95))),
        }


def startup_lines(plan: KvPlan) -> list[str]:
    """What vLLM prints for such a cache; it rounds to the nearest where `KvPlan.concurrency` rounds down."""
    quotient = plan.num_blocks / plan.geometry.num_blocks_for(plan.max_model_len)
    return [
        f"GPU KV cache size: {plan.kv_tokens:,} tokens",
        f"Maximum concurrency for {plan.max_model_len:,} tokens per request: {quotient:.2f}x",
    ]


def budget(question: Question) -> Budget:
    """Raises `ConfigError`, `ModelLoadError` or `ScenarioError` for what is no question of memory."""
    deployment = _deployment(question)
    kv_bytes = None if question.kv_bytes is None else parse_bytes(question.kv_bytes)
    lens = tuple(question.max_model_lens) or (deployment.spec.window,)
    utilizations = tuple(question.utilizations) or (deployment.config().cache.gpu_memory_utilization,)
    plans = _grid(deployment, utilizations, lens, kv_bytes)
    refused = next((plan for plan in plans if not plan.starts), None)
    return Budget(
        question=question,
        deployment=deployment,
        plans=plans,
        table=_table(deployment, question, lens, utilizations, kv_bytes),
        lengths=None if question.lengths is None else _lengths(question.lengths),
        remedies=() if refused is None else find_remedies(deployment, refused),
        warnings=_warnings(deployment, plans),
    )


def _deployment(question: Question) -> Deployment:
    dtype = question.dtype.lower()
    weights = stated_quantization(question.model) if dtype == "auto" else _known("dtype", dtype, _WEIGHTS)
    device = SimulatedDevice.of(
        question.gpu,
        tensor_parallel_size=question.tensor_parallel_size,
        quantization=weights,
        kv_cache_dtype=_known("kv-dtype", question.kv_dtype.lower(), _KV),
    )
    engine = {"block_size": question.block_size, **(question.settings or {})}
    for name in ("model", "max_model_len"):
        if name in engine:
            raise ConfigError(f"--set {name}: has a flag of its own. Use --{name.replace('_', '-')}")
    return Deployment(spec=find_simulated_spec(question.model), device=device, engine=engine)


def _known(flag: str, value: str, known: Mapping[str, str | None]) -> str | None:
    if value not in known:
        raise ConfigError(
            f"--{flag}: {value!r} is not an element type that can be planned with; {suggest(value, known)}"
        )
    return known[value]


def _grid(
    deployment: Deployment, utilizations: Sequence[float], lens: Sequence[int], kv_bytes: int | None
) -> tuple[KvPlan, ...]:
    return tuple(
        plan_kv(deployment, max_model_len=length, kv_bytes=kv_bytes, gpu_memory_utilization=utilization)
        for utilization in utilizations
        for length in lens
    )


def _table(
    deployment: Deployment, question: Question, lens: Sequence[int], utilizations: Sequence[float], kv_bytes: int | None
) -> tuple[KvPlan, ...]:
    """What was asked for, and the usual values of what was not."""
    if not question.max_model_lens:
        lens = sorted({*lens, *(length for length in _USUAL_LENS if length <= deployment.spec.window)})
    if not question.utilizations and kv_bytes is None:
        utilizations = sorted({*utilizations, *_USUAL_UTILIZATIONS})
    return _grid(deployment, utilizations, lens, kv_bytes)


def _lengths(path: Path) -> Lengths:
    from workbench.services.analyze import analyze

    analysis = analyze(path)
    totals = np.asarray(analysis.input_tokens, dtype=np.int64) + np.asarray(analysis.output_tokens, dtype=np.int64)
    totals = totals[analysis.used]
    if not len(totals):
        raise ConfigError(f"--lengths {path}: has no requests to take lengths from")
    return Lengths(
        source=str(path),
        num_requests=len(totals),
        mean=float(totals.mean()),
        p95=float(np.percentile(totals, 95)),
        requests=analysis.account,
    )


def _warnings(deployment: Deployment, plans: Sequence[KvPlan]) -> tuple[str, ...]:
    spec, device = deployment.spec, deployment.device
    found = []
    longest = max(plan.max_model_len for plan in plans)
    if spec.unknown_window_of is not None:
        found.append(
            f"the window of {spec.unknown_window_of} is not known, only its geometry (that of {spec.name}): whether it "
            f"takes max_model_len {longest} is for its config.json to say"
        )
    elif longest > spec.max_position:
        found.append(
            f"max_model_len {longest} is over the {spec.max_position} positions of {spec.name}: vLLM refuses it unless "
            "the model's rope scaling is set (--hf-overrides) or VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
        )
    if device.tensor_parallel_size > spec.num_kv_heads:
        found.append(
            f"{spec.num_kv_heads} KV heads on {device.tensor_parallel_size} GPUs: each head is stored "
            f"{device.tensor_parallel_size // spec.num_kv_heads} times, so bytes per token stop falling"
        )
    found += uncounted(spec, device)
    if max(plan.gpu_memory_utilization for plan in plans) > 0.95:
        found.append("gpu_memory_utilization over 0.95 starts, then runs out of memory under long prompts")
    return tuple(found)


def _cell(plan: KvPlan) -> dict[str, Any]:
    return {
        "gpu_memory_utilization": plan.gpu_memory_utilization,
        "max_model_len": plan.max_model_len,
        "num_blocks": plan.num_blocks,
        "kv_tokens": plan.kv_tokens,
        "concurrency": plan.concurrency(plan.max_model_len),
        "starts": plan.starts,
        "reason": plan.problem,
    }
