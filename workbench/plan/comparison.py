"""Deployments beside each other: every row a whole plan, made in processes of their own until the time is up."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from engine.catalog import GpuSpec, find_gpu
from engine.errors import ConfigError
from engine.simulation import find_simulated_spec
from workbench.capacity.cost import price_of
from workbench.capacity.kv_plan import Deployment, plan_kv
from workbench.capacity.remedies import find_remedies
from workbench.loadgen.errors import RunFailed
from workbench.plan.answer import Answer, Say, hardware_of, plan_deployment
from workbench.plan.question import Hardware
from workbench.plan.task import Task
from workbench.services.targets import device_of
from workbench.services.trials import end_with_parent

_NEARBY_GPUS = ("h100-80g-sxm", "a100-80g-sxm", "l40s-48g", "a100-40g-sxm")
_FULL_BATCH = 256
"""Sequences that share the reading of the weights, in the estimate that orders the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One change to the plan."""

    name: str
    target: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, task: Task) -> Task:
        """Return the task with the change. Raises `ValueError` for one that the target cannot have."""
        return task.with_target(self.target).with_engine(self.engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A deployment that does not start, or misses the limits at any rate."""

    hardware: Hardware
    reason: str
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.hardware.name,
            "gpu": self.hardware.gpu,
            "tp": self.hardware.tensor_parallel_size,
            "quantization": self.hardware.quantization,
            "reason": self.reason,
            "remedy": self.remedy,
        }


@dataclass(slots=True, kw_only=True)
class Compared:
    """What came of the rows."""

    answers: list[tuple[str, Answer]] = field(default_factory=list)
    does_not_fit: list[Refusal] = field(default_factory=list)
    not_planned: list[str] = field(default_factory=list)
    """Names of rows for which there was no time."""


def vary_hardware(rows: Sequence[Hardware]) -> list[Variation]:
    """Make a row for each."""
    return [
        Variation(
            name=row.name,
            target={
                "gpu": row.gpu,
                "tensor_parallel_size": row.tensor_parallel_size,
                "quantization": row.quantization,
                "profile": None,
            },
        )
        for row in rows
    ]


def vary_around(task: Task) -> Iterator[Variation]:
    """List what is worth a look beside one deployment, the likeliest to matter first."""
    target = task.target
    own = find_gpu(str(target.gpu)).id
    if target.quantization is None:
        yield Variation(name="fp8 weights", target={"quantization": "fp8"})
    for gpu in _NEARBY_GPUS:
        if gpu != own:
            yield Variation(name=f"on {gpu}", target={"gpu": gpu, "profile": None})
    size = target.tensor_parallel_size * 2
    yield Variation(name=f"tensor parallel {size}", target={"tensor_parallel_size": size})
    if target.kv_cache_dtype is None:
        yield Variation(name="fp8 KV cache", target={"kv_cache_dtype": "fp8"})
    caches = task.scenario.engine.get("enable_prefix_caching", True)
    yield Variation(name=f"prefix caching {'off' if caches else 'on'}", engine={"enable_prefix_caching": not caches})


class Comparison:
    """Plans rows in processes of their own, the cheapest by a bound first."""

    def __init__(self, task: Task, rows: Sequence[Variation], prices: Mapping[str, float], *, workers: int) -> None:
        self._result = Compared()
        self._pool = ProcessPoolExecutor(
            max_workers=workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
        )
        self._open: dict[Future[Answer | Refusal], str] = {}
        ready = []
        for row in rows:
            try:
                ready.append((row.name, row.applied(task)))
            except ValueError as error:
                self._result.not_planned.append(f"{row.name} ({error})")
        startable = [(name, each) for name, each in ready if self._starts(each)]
        for name, each in sorted(startable, key=lambda item: bound_usd_per_request(item[1], prices)):
            self._open[self._pool.submit(_plan_row, each, prices)] = name

    def collect(self, until: float, say: Say = lambda _: None) -> Compared:
        """Wait for rows until `until` (of `time.monotonic`); the others are named as not planned."""
        began = time.monotonic()
        tasks = dict(self._open)
        while self._open and time.monotonic() < until:
            done, _ = wait(self._open, timeout=max(0.0, until - time.monotonic()), return_when=FIRST_COMPLETED)
            for future in done:
                name = self._open.pop(future)
                self._take(name, future)
                finished = len(tasks) - len(self._open)
                elapsed = time.monotonic() - began
                left = elapsed / finished * len(self._open)
                say(f"{finished} of {len(tasks)} rows, {elapsed:.0f} s, about {left:.0f} s to go: {name}")
        self._result.not_planned += self._open.values()
        return self._result

    def close(self) -> None:
        """End what still runs: nobody will look at it."""
        for process in list((self._pool._processes or {}).values()):
            process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _take(self, name: str, future: Future[Answer | Refusal]) -> None:
        try:
            found = future.result()
        except BrokenProcessPool:
            self._result.not_planned.append(f"{name} (its process ended: out of memory?)")
            return
        if isinstance(found, Refusal):
            self._result.does_not_fit.append(found)
        else:
            self._result.answers.append((name, found))

    def _starts(self, task: Task) -> bool:
        refusal = find_refusal(task)
        if refusal is not None:
            self._result.does_not_fit.append(refusal)
        return refusal is None


def _start_worker() -> None:
    """Ctrl-C goes to all of a terminal's processes: the parent ends its workers, and so does its own end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _plan_row(task: Task, prices: Mapping[str, float]) -> Answer | Refusal:
    """In a worker: what cannot be planned comes back as a row too."""
    try:
        return plan_deployment(task, prices)
    except (ConfigError, RunFailed) as error:
        reason = str(error).removeprefix("plan: ").partition(". Relax")[0]
        return Refusal(hardware=hardware_of(task), reason=reason, remedy="relax the limits, or choose faster GPUs")


def find_refusal(task: Task) -> Refusal | None:
    """Say why a deployment does not start, and what would make it start; None where it does."""
    target, hardware = task.target, hardware_of(task)
    engine = {name: value for name, value in task.scenario.engine.items() if name != "max_model_len"}
    deployment = Deployment(spec=find_simulated_spec(task.scenario.model), device=device_of(target), engine=engine)
    try:
        sized = plan_kv(deployment, max_model_len=task.scenario.engine["max_model_len"])
    except ConfigError as error:
        return Refusal(hardware=hardware, reason=str(error), remedy="another number of GPUs (--tp)")
    if sized.problem is None:
        return None
    remedies = [remedy.change for remedy in find_remedies(deployment, sized)]
    reason = sized.problem.splitlines()[0]
    return Refusal(hardware=hardware, reason=reason, remedy="; or ".join(remedies) or "a smaller model: nothing helps")


def bound_usd_per_request(task: Task, prices: Mapping[str, float]) -> float:
    """Estimate what a request costs at the chip's data sheet, to plan the likely winners first. No figure of a row
    comes from it."""
    target, spec = task.target, find_simulated_spec(task.scenario.model)
    gpu, device = find_gpu(str(target.gpu)), device_of(target)
    prompt, answer = (float(each.mean()) for each in (task.workload.num_prompt_tokens, task.workload.max_output_tokens))
    weights = spec.num_parameters * device.precision.weight_bytes
    kv = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * device.precision.kv_bytes * (prompt + answer / 2)
    compute_s = 2.0 * spec.num_parameters * (prompt + answer) / _flops(gpu, target.quantization)
    memory_s = answer * (kv + weights / _FULL_BATCH) / gpu.bandwidth
    price = price_of(gpu, prices)
    return (compute_s + memory_s) * (1e6 if price is None else price.per_hour)


def _flops(gpu: GpuSpec, quantization: str | None) -> float:
    return gpu.fp8_flops if quantization == "fp8" and gpu.fp8_flops is not None else gpu.bf16_flops


def mark_pareto(rows: list[dict[str, Any]]) -> None:
    """Set `is_pareto` on rows with cost and latency: no other is both cheaper and faster (P95 of E2EL)."""
    points = [
        (row, row["usd_per_hour"], row["latency"].get("e2el_s.p95"))
        for row in rows
        if row.get("usd_per_hour") is not None and row["latency"].get("e2el_s.p95") is not None
    ]
    for row, cost, latency in points:
        row["is_pareto"] = not any(a <= cost and b <= latency and (a < cost or b < latency) for _, a, b in points)
