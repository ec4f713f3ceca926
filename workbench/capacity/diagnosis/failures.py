"""Rules about what broke: a start that failed, memory that ran out, a client that could not keep up."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.capacity.diagnosis import load
from workbench.capacity.diagnosis.evidence import Evidence, Limits
from workbench.capacity.diagnosis.finding import Change, Finding
from workbench.capacity.diagnosis.registry import rule

_SAFE_UTILIZATION = 0.88
_LAG_OF_TTFT = 0.1
_LEAST_LAG_S = 0.01


@rule
def start_failed(evidence: Evidence) -> Finding | None:
    """The server never came up: one request of max_model_len does not fit, or nothing does."""
    memory, limits = evidence.memory, evidence.limits
    if memory.start_error is None:
        return None
    too_long = memory.longest_len is not None
    if too_long:
        changes = [
            Change(parameter="max_model_len", value=memory.longest_len, note="the most that this memory holds"),
            *_higher_utilization(limits, 0.95),
            Change(parameter="kv_cache_dtype", value="fp8", note="half the bytes a token"),
        ]
        cause = "max_model_len asks for more KV cache than is left: one full-length request does not fit"
    else:
        changes = [
            Change(parameter="tensor_parallel_size", value=2 * (limits.tensor_parallel_size or 1), note="or more GPUs"),
            *(() if limits.quantization else (Change(parameter="quantization", value="fp8", note="smaller weights"),)),
            *_higher_utilization(limits, 0.92),
        ]
        cause = "weights, activations and overheads leave no room for a KV cache"
    return Finding(
        code="max_model_len_too_large" if too_long else "start_failed",
        severity=100,
        symptom="the server does not start",
        cause=f"{cause}: {memory.start_error}",
        evidence={"max_model_len": limits.max_model_len, "longest_len": memory.longest_len},
        changes=tuple(changes),
    )


def _higher_utilization(limits: Limits, value: float) -> Iterator[Change]:
    if limits.gpu_memory_utilization is None or limits.gpu_memory_utilization < value:
        yield Change(parameter="gpu_memory_utilization", value=value, note="only if the GPU is otherwise empty")


@rule
def out_of_memory(evidence: Evidence) -> Finding | None:
    """Memory ran out at load or, worse, under load."""
    memory, limits = evidence.memory, evidence.limits
    if memory.out_of_memory is None:
        return None
    utilization = limits.gpu_memory_utilization
    if not memory.ran_before:
        changes = (
            Change(
                parameter="tensor_parallel_size",
                value=2 * (limits.tensor_parallel_size or 1),
                note="or a larger GPU, or quantised weights",
            ),
            Change(parameter="max_num_seqs", value=64, note="the sampler's warm-up needs memory for every sequence"),
        )
        cause = "the GPU is full before the KV cache is there: weights, or another process on the card"
    else:
        budget = limits.max_num_batched_tokens
        changes = (
            Change(
                parameter="gpu_memory_utilization",
                value=min(_SAFE_UTILIZATION, round((utilization or 1.0) - 0.03, 2)),
                note="leaves room for activations",
            ),
            Change(parameter="max_num_batched_tokens", value=2048 if budget is None else max(512, budget // 2)),
        )
        cause = "activations of long prompts exceed the headroom that gpu_memory_utilization leaves"
    return Finding(
        code="out_of_memory",
        severity=98,
        symptom=f"out of memory {'under load' if memory.ran_before else 'at start'}",
        cause=f"{cause}: {memory.out_of_memory}",
        evidence={
            "gpu_memory_utilization": utilization,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "activation_bytes": memory.activation_bytes,
        },
        changes=changes,
    )


@rule
def client_bottleneck(evidence: Evidence) -> Finding | None:
    """Requests leave the client late while the engine has nothing waiting."""
    traffic = evidence.traffic
    lag = traffic.client_lag_p99_s
    if lag is None or lag < max(_LEAST_LAG_S, _LAG_OF_TTFT * (traffic.ttft_p50_s or 0.0)):
        return None
    if load.is_queueing(evidence):
        return None  # the engine is behind as well: its own limits come first
    if traffic.is_client_capped:
        if traffic.meets_slo is True:
            return None
        rate = traffic.arrival_rate or 0.0
        service = max((traffic.ttft_p95_s or 0.0) - lag, 0.0)
        cause = f"the client keeps at most {traffic.client_cap} requests in flight and holds the others back"
        note = (
            f"remove it, or raise it: {rate:.3g} requests/s arrive; waiting in the client is {lag:.2f} s of the "
            f"latency, the server's share is about {service:.2f} s"
        )
        changes: tuple[Change, ...] = (Change(parameter="workload.max_concurrency", value=None, note=note),)
    else:
        cause = "the load generator sends late: it, not the server, is the bottleneck"
        changes = (
            Change(parameter="workload.arrivals.rate", value="lower", note="or give the client more CPU"),
            Change(parameter="engine.threads", value="fewer", note="where engine and client share the cores"),
        )
    return Finding(
        code="client_bottleneck",
        severity=95,
        symptom=f"requests leave the client {lag * 1e3:.1f} ms late (p99) while the engine's queue is empty",
        cause=f"client bottleneck: {cause}",
        evidence={
            "client_lag_p99_s": lag,
            "ttft_p50_s": traffic.ttft_p50_s,
            "mean_waiting": float(evidence.timeline.waiting.mean()) if len(evidence.timeline) else None,
            "peak_running": load.peak_running(evidence.timeline) if len(evidence.timeline) else None,
            "client_cap": traffic.client_cap,
        },
        changes=changes,
    )
