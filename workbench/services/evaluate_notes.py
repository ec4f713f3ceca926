"""What a published row says that its simulation leaves out, and figures of it that no such chip can reach."""

from __future__ import annotations

import re
import shlex

from engine.executor.cost_model.operators import chip_of
from engine.model_spec import ModelSpec
from engine.simulation import SimulatedDevice
from workbench.services.evaluate_cells import Row, number

_MODELLED = frozenset({
    "max-num-seqs", "max-num-batched-tokens", "max-model-len", "gpu-memory-utilization", "block-size", "enforce-eager",
    "async-scheduling", "no-async-scheduling", "enable-prefix-caching", "no-enable-prefix-caching",
    "enable-chunked-prefill", "no-enable-chunked-prefill", "long-prefill-token-threshold", "tensor-parallel-size", "tp",
    "pipeline-parallel-size", "pp",
})  # fmt: skip
"""Options of vLLM whose value the simulated engine has; the parallel sizes by columns of their own."""
_COLUMNS = {
    "kv-cache-dtype": "kv_dtype",
    "dtype": "weights_dtype",
    "quantization": "weights_dtype",
    "q": "weights_dtype",
}
"""Options that a column of the table states as well, which then counts."""
_HARMLESS = frozenset({
    "model", "served-model-name", "tokenizer", "tokenizer-mode", "trust-remote-code", "host", "port", "api-key",
    "disable-log-requests", "no-enable-log-requests", "disable-log-stats", "uvicorn-log-level", "chat-template",
    "reasoning-parser", "enable-reasoning", "tool-call-parser", "enable-auto-tool-choice", "seed", "download-dir",
    "load-format", "revision", "generation-config", "distributed-executor-backend", "model-impl",
})  # fmt: skip
"""Options that change no step of the engine."""


def unmodelled(row: Row) -> list[str]:
    """Return a note for each part of the row that its simulation leaves out."""
    notes = []
    names = [name for name in _options(row.get("engine_args") or "") if not _is_modelled(name, row)]
    if names:
        notes.append(f"not modelled: {', '.join(f'--{name}' for name in dict.fromkeys(names))}")
    for column, what in (("ep", "expert parallelism"), ("dp", "data parallelism")):
        if (number(row, column) or 1) > 1:
            notes.append(f"not modelled: {what} ({column} {row[column]})")
    return notes


def _options(text: str) -> list[str]:
    """Return the names of the options in a command line, as vLLM spells them; a comment ends it."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.partition("#")[0].split()
    names = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]|[a-z_]+=(?!=)", word)]
    return [name.lstrip("-").replace("_", "-").partition(".")[0] for name in names]


def _is_modelled(name: str, row: Row) -> bool:
    return name in _MODELLED or name in _HARMLESS or bool(row.get(_COLUMNS.get(name, "")))


def under_the_floor(row: Row, spec: ModelSpec, device: SimulatedDevice) -> list[str]:
    """Return a note for each published figure that is faster than the chip's data sheet allows."""
    ttft_s, tpot_s = floors_s(spec, device, number(row, "input_len") or 0.0)
    notes = []
    for name, floor_ms, cause in (
        ("ttft_mean_ms", ttft_s * 1e3, "a prefix hit?"),
        ("tpot_mean_ms", tpot_s * 1e3, "speculative decoding?"),
        ("tpot_p50_ms", tpot_s * 1e3, "speculative decoding?"),
    ):
        published = number(row, name)
        if published is not None and 0 < published < floor_ms:
            notes.append(f"{name} {published:g} is under the floor of {floor_ms:.3g} ms that the chip sets: {cause}")
    total = number(row, "total_tok_s")
    if total is not None and ttft_s > 0 and total * ttft_s > (number(row, "input_len") or 0.0) * 1.0001:
        rate = (number(row, "input_len") or 0.0) / ttft_s
        notes.append(f"total_tok_s {total:g} is over the {rate:,.0f} tokens/s that the chip computes: a prefix hit?")
    return notes


def floors_s(spec: ModelSpec, device: SimulatedDevice, input_len: float) -> tuple[float, float]:
    """Return the least (TTFT, TPOT) of a lone request: all operations of the prompt at the rated speed, and all weights
    of a step read once at the rated bandwidth."""
    width = spec.expert_intermediate_size or spec.intermediate_size
    idle = (spec.num_experts or 0) - (spec.num_experts_per_token or 0)
    layers = spec.num_layers * (spec.num_layer_parameters - 3 * spec.hidden_size * width * max(idle, 0))
    precision, tp = device.precision, device.tensor_parallel_size
    flops = chip_of(device.gpu, precision.weights).flops * tp
    read = layers * precision.weight_bytes + spec.vocab_size * spec.hidden_size * 2.0
    return 2.0 * layers * input_len / flops, read / (device.gpu.bandwidth * tp)
