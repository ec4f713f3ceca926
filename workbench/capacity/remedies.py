"""What would make a deployment start that does not: each remedy tried with the functions that refused it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.catalog import list_gpus
from engine.simulation import GPUS_PER_NODE
from workbench.capacity.kv_plan import Deployment, KvPlan, plan_kv, utilization_for

_HIGHEST_UTILIZATION = 0.95
"""Above this, start-up succeeds and the first long prompts run out of memory."""
_GPU_COUNTS = (2, 4, 8, 16)
"""Tensor-parallel sizes that are offered."""
_FEWEST_BATCHED_TOKENS = 2048
_FEWEST_SEQS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change, or a few together, and what the cache holds then."""

    change: str
    """For people, with its number."""
    options: dict[str, Any]
    """Options of `workbench budget`, by name."""
    plan: KvPlan

    def joined(self, second: Remedy) -> Remedy:
        """Both changes; the plan of `second` has the first in it."""
        change = f"{self.change} and {second.change}"
        return Remedy(change=change, options=self.options | second.options, plan=second.plan)

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "change": self.change,
            "options": self.options,
            "num_blocks": self.plan.num_blocks,
            "kv_tokens": self.plan.kv_tokens,
            "max_model_len": self.plan.max_model_len,
            "concurrency": self.plan.concurrency(self.plan.max_model_len),
        }


def find_remedies(deployment: Deployment, refused: KvPlan) -> tuple[Remedy, ...]:
    """Every change that makes `refused` start: alone where that is enough, else with the least that must be added.

    Empty only where not even the smallest weights on the most GPUs leave room for a block.
    """
    found = [*_single_changes(deployment, refused)]
    for first in _precision_changes(deployment, refused):
        found += _completed(refused, first)
    return (*(remedy for remedy in found if remedy.plan.starts), *_larger_gpu(deployment, refused))


def _single_changes(deployment: Deployment, refused: KvPlan) -> Iterator[Remedy]:
    yield from _shorter(deployment, refused)
    yield from _higher_utilization(deployment, refused)
    yield from _smaller_steps(deployment, refused)
    yield from _more_gpus(deployment, refused)


def _precision_changes(deployment: Deployment, refused: KvPlan) -> Iterator[tuple[Remedy, Deployment]]:
    for change, options, changed in _precisions(deployment):
        yield Remedy(change=change, options=options, plan=_again(changed, refused)), changed


def _completed(refused: KvPlan, first: tuple[Remedy, Deployment]) -> Iterator[Remedy]:
    """A change of precision; where it is not enough, with a shorter context, and with more GPUs."""
    remedy, changed = first
    if remedy.plan.starts:
        yield remedy
        return
    is_same_cache = remedy.plan.is_sized_directly and remedy.plan.num_blocks == refused.num_blocks
    if is_same_cache and not refused.overflows:
        return  # smaller weights do not widen a cache of a given size
    more = next(_more_gpus(changed, remedy.plan), None) or _most_gpus(changed, remedy.plan)
    seconds = [*_shorter(changed, remedy.plan), *([] if more is None else [more])]
    for second in seconds:
        yield remedy.joined(second)
    if more is not None and not more.plan.starts:
        on_most = changed.with_device(tensor_parallel_size=more.plan.num_gpus)
        yield from (remedy.joined(more).joined(third) for third in _shorter(on_most, more.plan))


def _precisions(deployment: Deployment) -> Iterator[tuple[str, dict[str, Any], Deployment]]:
    spec, now = deployment.spec, deployment.device.precision
    for name in ("fp8", "int8", "int4"):
        changed = deployment.with_precision(weights=name)
        if changed.device.precision.weight_bytes < now.weight_bytes:
            layers = spec.num_layers * spec.num_layer_parameters
            saved = layers * (now.weight_bytes - changed.device.precision.weight_bytes)
            yield f"{name} weights (saves {_gib(saved)} of weights)", {"dtype": name}, changed
    if now.kv_bytes > 1:
        yield "fp8 KV cache (half the bytes a token)", {"kv_dtype": "fp8"}, deployment.with_precision(kv="fp8")


def _shorter(deployment: Deployment, refused: KvPlan) -> Iterator[Remedy]:
    longest = min(refused.longest_len, refused.max_model_len - 1)
    if longest >= refused.geometry.block_size:
        plan = _again(deployment, refused, max_model_len=longest)
        yield Remedy(change=f"max_model_len of at most {longest:,}", options={"max_model_len": longest}, plan=plan)


def _higher_utilization(deployment: Deployment, refused: KvPlan) -> Iterator[Remedy]:
    if refused.is_sized_directly:
        return
    value = utilization_for(refused, refused.geometry.num_blocks_for(refused.max_model_len) + 1)
    if refused.gpu_memory_utilization < value <= _HIGHEST_UTILIZATION:
        options = {"gpu_memory_utilization": value}
        plan = _again(deployment, refused, **options)
        yield Remedy(change=f"gpu_memory_utilization of at least {value:g}", options=options, plan=plan)


def _smaller_steps(deployment: Deployment, refused: KvPlan) -> Iterator[Remedy]:
    scheduler = deployment.config().scheduler
    options = {
        "max_num_batched_tokens": min(scheduler.max_num_batched_tokens, _FEWEST_BATCHED_TOKENS),
        "max_num_seqs": min(scheduler.max_num_seqs, _FEWEST_SEQS),
    }
    plan = _again(deployment, refused, **options)
    saved = sum(refused.ledger[line] - plan.ledger[line] for line in ("activation", "logits"))
    change = (
        f"max_num_batched_tokens {options['max_num_batched_tokens']} and max_num_seqs {options['max_num_seqs']} "
        f"(saves {_gib(saved)} of activations and logits)"
    )
    if saved > 0:
        yield Remedy(change=change, options={"set": options}, plan=plan)


def _more_gpus(deployment: Deployment, refused: KvPlan) -> Iterator[Remedy]:
    """The fewest GPUs."""
    for count in _GPU_COUNTS:
        if count <= deployment.device.tensor_parallel_size or not deployment.can_span(count):
            continue
        plan = _again(deployment.with_device(tensor_parallel_size=count), refused)
        if plan.starts:
            yield Remedy(change=_gpus(count), options={"tp": count}, plan=plan)
            return


def _most_gpus(deployment: Deployment, refused: KvPlan) -> Remedy | None:
    """As many as are usual in one deployment and divide the heads; None where there are as many already."""
    counts = list(filter(deployment.can_span, _GPU_COUNTS))
    if not counts or counts[-1] <= deployment.device.tensor_parallel_size:
        return None
    plan = _again(deployment.with_device(tensor_parallel_size=counts[-1]), refused)
    return Remedy(change=_gpus(counts[-1]), options={"tp": counts[-1]}, plan=plan)


def _gpus(count: int) -> str:
    return f"{count} GPUs (tensor parallel{', over several nodes' if count > GPUS_PER_NODE else ''})"


def _larger_gpu(deployment: Deployment, refused: KvPlan) -> Iterator[Remedy]:
    """The smallest of the catalogue's GPUs that starts it as it is."""
    larger = [gpu for gpu in list_gpus() if gpu.memory_bytes > deployment.device.gpu.memory_bytes]
    for gpu in sorted(larger, key=lambda gpu: (gpu.memory_bytes, gpu.price_per_hour or float("inf"))):
        plan = _again(deployment.with_device(gpu=gpu), refused)
        if plan.starts and not refused.is_sized_directly:
            yield Remedy(change=f"a larger GPU: {gpu.id}", options={"gpu": gpu.id}, plan=plan)
            return


def _again(deployment: Deployment, refused: KvPlan, **values: Any) -> KvPlan:
    """The refused plan's question to another deployment."""
    kv_bytes = refused.kv_bytes if refused.is_sized_directly else None
    asked = {"max_model_len": refused.max_model_len, "gpu_memory_utilization": refused.gpu_memory_utilization}
    return plan_kv(deployment, kv_bytes=kv_bytes, **(asked | values))


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 1024**3:.2f} GiB"
