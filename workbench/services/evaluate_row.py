"""A published run as a simulation: its device, its engine as the vLLM of that version started, its load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.catalog import find_gpu
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.executor.cost_model.deployment import Overheads
from engine.simulation import SimulatedDevice, find_simulated_spec, with_gpu_defaults
from workbench.loadgen.simulated import SimulatedTarget
from workbench.scenario import Scenario
from workbench.services.evaluate_cells import (
    MOST_STATED_PROMPTS,
    UNSTATED,
    NotBuildable,
    Row,
    number,
    stated_rate,
    version_of,
)
from workbench.services.evaluate_iog import RTX_4090_DELAY_MS, iog_arrivals, is_iog, was_served_before
from workbench.services.evaluate_lengths import FloatArray, IntArray, published_lengths
from workbench.services.evaluate_prompts import RepeatedPrompts, num_distinct_prompts
from workbench.services.evaluate_trace import Trace, read_trace
from workbench.workload import ModelLimits, Workload, generate_workload
from workbench.workload.prompts import PromptSource, RandomPrompts

_MOST_PROMPTS = 2000
"""Longer runs of a stationary load are cut to this many requests."""
_UTILISATIONS = (0.95, 0.98)
"""What a run that did not fit as described must have been given."""


def device_of(row: Row) -> SimulatedDevice:
    """GPU, tensor parallel size and precision of a row."""
    weights = row.get("weights_dtype", "").lower()
    quantisation = next((kind for key, kind in _QUANTISATIONS.items() if weights.startswith(key)), None)
    kv = "fp8" if row.get("kv_dtype", "").lower().startswith("fp8") else None
    device = SimulatedDevice.of(
        _gpu_of(row), tensor_parallel_size=int(number(row, "tp") or 1), quantization=quantisation, kv_cache_dtype=kv
    )
    return replace(device, overheads=overheads_of(row), budgets_graphs=version_of(row) >= (0, 21))


_PCIE_PAGES = ("qwen3-14b/h100.md", "qwen3-32b/h100.md")
"""gpustack's pages that name one H100 SXM but show the memory and compute rates of an H100 PCIe in every row: Qwen3-32B
decodes at 1.6 TB/s, as on IOG's H100 PCIe, and takes prompts in at 385 TFLOP/s. Qwen3-8B's page shows an SXM part."""


def _gpu_of(row: Row) -> str:
    """The GPU that was measured."""
    is_mistaken = row.get("source", "").endswith(_PCIE_PAGES) and find_gpu(row["gpu"]).id == "h100-80g-sxm"
    return "h100-80g-pcie" if is_mistaken else row["gpu"]


_QUANTISATIONS = {"fp8": "fp8", "int8": "int8", "w8a8": "int8", "awq": "int4", "gptq4": "int4", "gptq": "int4",
                  "int4": "int4", "w4a16": "int4"}  # fmt: skip


def overheads_of(row: Row) -> Overheads:
    """Overheads of the row's vLLM generation and client."""
    version = version_of(row)
    generation = next(values for limit, values in _GENERATIONS if version < limit)
    note = (row.get("bench_note") or "").lower()
    if "chat" in note:
        generation = replace(generation, request_ms=_CHAT_REQUEST_MS, delay_ms=_CHAT_DELAY_MS)
    elif is_iog(row) and "4090" in row["gpu"]:
        generation = replace(generation, delay_ms=RTX_4090_DELAY_MS)
    # Such clients leave sampling to the model's generation_config; completion benchmarks are greedy.
    samples = "chat" in note or "aiperf" in note or "gpustack" in row.get("source", "")
    return replace(generation, sorts_logits=samples and version >= (0, 8) and _asks_for_top_p(row["model"]))


def _asks_for_top_p(model: str) -> bool:
    return any(name in model.lower() for name in ("qwen3", "deepseek", "qwq", "qwen2.5"))


_GENERATIONS: tuple[tuple[tuple[int, int], Overheads], ...] = (
    ((0, 8), Overheads(layer_us=60.0, step_us=1500.0, sequence_us=20.0, is_async=False)),
    ((0, 12), Overheads(layer_us=14.0, step_us=600.0, sequence_us=6.0, is_async=False)),
    ((10**6, 0), Overheads()),
)
_CHAT_REQUEST_MS, _CHAT_DELAY_MS = 14.0, 32.0
"""Chat endpoint: template, tokens and messages of one request; and what passes beside others. From gpustack's runs."""
_CONFIGURATOR_TOKENS = 256
"""What engines that a configurator sized take in a step beside one prompt; from their published TTFTs, which do not
grow with the length of the answers and hardly with the concurrency."""


def target_of(row: Row, device: SimulatedDevice, workload: Workload) -> SimulatedTarget:
    """The engine on its device. A run that was published did start: where what is known of it does not fit, the window
    is taken as short as its requests allow and the utilisation as high as it must have been.

    Raises `EngineError` for what does not fit in any way.
    """
    model = row["model"]
    longest = int((workload.num_prompt_tokens + workload.max_output_tokens).max())
    spec = find_simulated_spec(model)
    window = longest if spec.unknown_window_of else max(spec.window, longest)
    stated = engine_of(row, device, window)
    tries = [stated]
    if "max_model_len" in dict(_stated_options(row)):  # its cache held that window
        tries.append({**stated, "num_blocks": -(-stated["max_model_len"] // stated.get("block_size", 16)) + 1})
    tries.append({**stated, "max_model_len": longest})
    tries += [{**tries[-1], "gpu_memory_utilization": share} for share in _UTILISATIONS]
    refused: ConfigError | None = None
    for values in tries:
        try:
            return SimulatedTarget(EngineConfig.from_dict({"model": model, **_complete(row, values, device)}), device)
        except ConfigError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def engine_of(row: Row, device: SimulatedDevice, window: int) -> dict[str, Any]:
    """Engine parameters: what the row states, else the defaults of its vLLM version."""
    stated = dict(_stated_options(row))
    version = version_of(row)
    # Where no prompt comes twice, nothing would hit the prefix cache.
    is_cached = num_distinct_prompts(row) is not None or was_served_before(row)
    values: dict[str, Any] = {"gpu_memory_utilization": 0.9, "enable_prefix_caching": is_cached}
    if version < (0, 8):
        values |= {"max_num_seqs": 256, "async_scheduling": False}
        # Those versions chunked prompts by themselves only where the window was long.
        longest = max(stated.get("max_model_len", window), _needed_len(row, window))
        values["enable_chunked_prefill"] = longest > 32768 and "benchmark_throughput" not in row.get("engine_args", "")
    else:
        values |= {
            "gpu_memory_utilization": 0.92 if version >= (0, 20) else 0.9,
            "async_scheduling": version >= (0, 12),
        }
    if "gap-analysis" in (row.get("bench_note") or ""):
        values["max_num_batched_tokens"] = int(number(row, "input_len") or 0) + _CONFIGURATOR_TOKENS
    values |= stated
    values["max_model_len"] = max(values.get("max_model_len", 0), _needed_len(row, window))
    return values


def _complete(row: Row, values: dict[str, Any], device: SimulatedDevice) -> dict[str, Any]:
    """With the budget that follows from the rest."""
    values = dict(values)
    if version_of(row) < (0, 8) and "max_num_batched_tokens" not in values:
        values["max_num_batched_tokens"] = 512 if values["enable_chunked_prefill"] else 2048
    if not values.get("enable_chunked_prefill", True):
        values["max_num_batched_tokens"] = max(values.get("max_num_batched_tokens", 0), values["max_model_len"])
    values = with_gpu_defaults(values, device.gpu)
    values["max_num_batched_tokens"] = max(values["max_num_batched_tokens"], values["max_num_seqs"])
    return values


def _needed_len(row: Row, window: int) -> int:
    """vLLM would take the model's whole window; where that does not fit, benchmarks shortened it. The scheduler decides
    the same for any length that holds every request."""
    asked = (number(row, "input_len") or 1) + (number(row, "output_len") or 1)
    return int(min(window, max(asked * 4, 8192)))


def _stated_options(row: Row) -> Iterator[tuple[str, Any]]:
    text, concurrency = row.get("engine_args", "") or "", number(row, "max_concurrency")
    if concurrency:
        text = text.replace("CONC", str(int(concurrency)))
    names = {"max-num-seqs": int, "max-num-batched-tokens": int, "max-model-len": int, "gpu-memory-utilization": float,
             "block-size": int, "long-prefill-token-threshold": int}  # fmt: skip
    flat = text.replace("_", "-")
    for name, kind in names.items():
        match = re.search(rf"(?:--)?{name}[ =]+([\d.]+)", flat)
        if match:
            try:
                yield name.replace("-", "_"), kind(match[1])
            except ValueError:
                raise NotBuildable(f"engine_args: {name} must be of type {kind.__name__} (got {match[1]})") from None
    for name in ("async-scheduling", "enable-chunked-prefill", "enable-prefix-caching"):
        match = re.search(rf"--(no-)?{name}(?:[ =](true|false))?(?![\w-])", flat, re.IGNORECASE)
        # Prompts that come twice are known apart: caching that is on changes nothing.
        if match and (name != "enable-prefix-caching" or match[1]):
            yield name.replace("-", "_"), not match[1] and (match[2] or "").lower() != "false"
    if re.search(r"--enforce-eager(?!=?\s*false)", flat, re.IGNORECASE):
        yield "enforce_eager", True


def workload_of(row: Row, folder: Path | None = None) -> Workload:
    """The row's requests; those of its own trace where one is named and lies in `folder`, that of the table.

    Raises `NotBuildable` where their lengths are not published or the rate is none.
    """
    trace = _trace_of(row, folder)
    if trace is not None:
        workload = _requests(row, {"kind": "all_at_once"}, len(trace.arrived_s))
        workload = _with_lengths(
            row, workload, trace.prompt_tokens.astype(np.int64), trace.output_tokens.astype(np.int64)
        )
        return replace(workload, arrival_s=trace.arrived_s - trace.arrived_s[0])
    arrivals, count = _arrivals_of(row)
    prompts, outputs = (published_lengths(row, side, count) for side in ("input", "output"))
    if prompts is None or outputs is None:
        raise NotBuildable(f"{'output_len' if prompts is not None else 'input_len'} is not published")
    workload = _with_lengths(row, _requests(row, arrivals, count), prompts, outputs)
    concurrency = number(row, "max_concurrency")
    if arrivals["kind"] == "poisson" and concurrency:
        workload = replace(workload, max_concurrency=int(concurrency))
    if arrivals["kind"] == "poisson":
        workload = replace(workload, arrival_s=_as_sent(row, workload.arrival_s, arrivals["rate"]))
    return workload


def _arrivals_of(row: Row) -> tuple[dict[str, Any], int]:
    """Arrivals as a scenario states them, and how many."""
    concurrency = number(row, "max_concurrency")
    rate = row.get("request_rate", "inf").strip().lower()
    count = int(number(row, "num_prompts") or (min(10 * concurrency, MOST_STATED_PROMPTS) if concurrency else 200))
    if rate == "single":
        return {"kind": "closed_loop", "concurrency": 1}, min(count, 4)
    if rate not in UNSTATED:
        return {"kind": "poisson", "rate": stated_rate(rate)}, count
    if concurrency and concurrency < count:
        count = min(count, max(_MOST_PROMPTS, int(4 * concurrency)))
        return {"kind": "closed_loop", "concurrency": int(concurrency)}, count
    return {"kind": "all_at_once"}, count


def _as_sent(row: Row, arrival_s: FloatArray, rate: float) -> FloatArray:
    """[count] seconds, from Poisson arrivals of about that rate (requests per second): vLLM's client scales its gaps so
    that the last request leaves when the rate says."""
    count = len(arrival_s)
    if is_iog(row):
        return iog_arrivals(count, rate)
    return arrival_s * (count / rate / arrival_s[-1]) if arrival_s[-1] > 0 else arrival_s


def _trace_of(row: Row, folder: Path | None) -> Trace | None:
    match = re.search(r"per-request in (\S+\.csv)", row.get("len_dist") or "")
    if match is None or folder is None or not (folder / match[1]).is_file():
        return None
    return read_trace(folder / match[1])


def _requests(row: Row, arrivals: dict[str, Any], count: int) -> Workload:
    """So many requests of one token each."""
    kind = {"name": "all", "input_tokens": 1, "output_tokens": 1}
    scenario = Scenario.model_validate(
        {
            "name": "published-run",
            "seed": 1,
            "model": row["model"],
            "workload": {"num_requests": count, "arrivals": arrivals, "classes": [kind]},
        }
    )
    limits = ModelLimits(max_model_len=None, vocab_size=find_simulated_spec(row["model"]).vocab_size)
    return generate_workload(scenario, limits)


def _with_lengths(row: Row, workload: Workload, prompts: IntArray, outputs: IntArray) -> Workload:
    assert isinstance(workload.prompts, RandomPrompts)
    source: PromptSource = replace(workload.prompts, num_prompt_tokens=prompts)
    num_distinct = num_distinct_prompts(row)
    if num_distinct is not None:
        source = RepeatedPrompts(source=source, num_distinct=num_distinct)
    return replace(workload, num_prompt_tokens=prompts, max_output_tokens=outputs, prompts=source)
