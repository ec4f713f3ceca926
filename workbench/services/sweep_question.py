"""What `workbench sweep` is asked: a scenario file, or a model, a GPU and a trace in flags."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from engine.catalog import find_gpu
from engine.errors import ConfigError
from workbench.scenario import Scenario, load_scenario
from workbench.scenario.loader import parse_scenario
from workbench.services.describe import limits_of
from workbench.workload import generate_workload

DEFAULT_SPACE: Mapping[str, Any] = {
    "max_num_seqs": {"low": 16, "high": 512, "log": True},
    "max_num_batched_tokens": {"low": 1024, "high": 16384, "log": True},
}
"""Searched where no scenario says what: the two parameters that decide most, around vLLM's defaults."""
_LEN_STEP = 1024
_NEEDED = ("model", "gpu", "trace", "slo")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepQuestion:
    """The flags, as given."""

    scenario: Path | None = None
    overrides: Sequence[str] = ()
    model: str | None = None
    gpu: str | None = None
    trace: Path | None = None
    rate_per_s: float | None = None
    slo: Sequence[str] = ()
    tensor_parallel_size: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None


_FLAGS = {"rate_per_s": "--rate", "tensor_parallel_size": "--tp", "kv_cache_dtype": "--kv-dtype"}


def load_question(question: SweepQuestion) -> Scenario:
    """Build the scenario to tune. Raises `ScenarioError` or `ConfigError` for what cannot be."""
    if question.scenario is not None:
        named = [each.name for each in fields(question) if each.name not in ("scenario", "overrides")]
        for name in named:
            if getattr(question, name) not in (None, (), []):
                flag = _FLAGS.get(name, f"--{name}")
                raise ConfigError(f"{flag}: the scenario says it. Use --set to change the scenario")
        return load_scenario(question.scenario, question.overrides)
    missing = [name for name in _NEEDED if not getattr(question, name)]
    if missing:
        what = "SCENARIO" if len(missing) == len(_NEEDED) else f"--{missing[0]}"
        raise ConfigError(f"{what}: is missing. Give a scenario file, or --model, --gpu, --trace and --slo")
    find_gpu(question.gpu or "")
    scenario = parse_scenario(
        json.dumps(_document(question)), source="sweep", overrides=[*_limits(question.slo), *question.overrides]
    )
    if "max_model_len" in scenario.engine:
        return scenario
    limits = limits_of(scenario)
    workload = generate_workload(scenario, limits)
    longest = int((workload.num_prompt_tokens + workload.max_output_tokens).max())
    length = math.ceil((longest + 1) / _LEN_STEP) * _LEN_STEP
    length = length if limits.max_model_len is None else min(limits.max_model_len, length)
    return scenario.model_copy(update={"engine": {**scenario.engine, "max_model_len": length}})


def _document(question: SweepQuestion) -> dict[str, Any]:
    assert question.trace is not None
    arrivals: dict[str, Any] = {"kind": "trace", "path": str(question.trace)}
    if question.rate_per_s is not None:
        arrivals["rate"] = question.rate_per_s
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{question.trace.stem}-{question.gpu}").strip("-").lower()
    return {
        "name": name[:60].strip("-"),
        "model": question.model,
        "target": {
            "kind": "simulated",
            "gpu": question.gpu,
            "tensor_parallel_size": question.tensor_parallel_size or 1,
            "quantization": question.quantization,
            "kv_cache_dtype": question.kv_cache_dtype,
        },
        "workload": {"over_long": "fail", "arrivals": arrivals},  # a request that does not fit is never left out
        "search": {"space": DEFAULT_SPACE},
    }


def _limits(slo: Sequence[str]) -> list[str]:
    for text in slo:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"--slo: must be NAME=DURATION such as ttft_p95=2s (got {text!r})")
    return [f"slo.{text}" for text in slo]
