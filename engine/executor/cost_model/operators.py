"""Fitted operator models: a formula times a learned correction, with its own error, and their profiles on disk.

The correction is the posterior mean of a Gaussian process over the logarithm of measured / formula, with a squared-
exponential kernel on the logarithms of the shape: near measured shapes it follows them, far from them it goes to 1
and the formula alone remains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.catalog import GpuSpec, find_gpu
from engine.errors import ConfigError
from engine.executor.cost_model.collectives import Tables, with_borders
from engine.executor.cost_model.physics import Chip, decode_attention_s, gemm_s, prefill_attention_s

Array = npt.NDArray[np.float64]
Columns = Mapping[str, Array]
KINDS = ("gemm", "decode_attention", "prefill_attention")
PROFILE_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """Absolute relative error, by cross-validation over shapes that were not in the fit."""

    median: float
    p90: float
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Gaussian-process residual: `exp(kernel(x, support) @ weights)`."""

    scales: Array
    """[num_features] length scales, in the features' units (mostly powers of two)."""
    support: Array
    """[num_rows, num_features]"""
    weights: Array
    """[num_rows]"""

    def factor(self, features: Array) -> Array:
        """[num] correction of each row of `features` [num, num_features]."""
        a, b = features / self.scales, self.support / self.scales
        squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2.0 * a @ b.T
        return np.asarray(np.exp(np.exp(-0.5 * np.maximum(squares, 0.0)) @ self.weights))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorModel:
    """One kind of operator in one element type on one GPU."""

    kind: str
    dtype: str
    """GEMM: of weights and activations (`bfloat16`, `fp8`); attention: `bfloat16`, the KV type is a feature."""
    parameters: Mapping[str, float]
    correction: Correction | None
    error: FitError | None
    """None: transferred from another GPU, never measured on this one."""
    source: str

    def predict_s(self, columns: Columns, chip: Chip, *, weight_bytes: float = 2.0, act_bytes: float = 2.0) -> Array:
        """Seconds for each row. Columns: gemm m, n, k; attention batch, kv_len | new, cached, heads, kv_heads,
        head_dim, kv_bytes."""
        seconds = formula_s(self.kind, self.parameters, columns, chip, weight_bytes, act_bytes)
        if self.correction is not None:
            seconds = seconds * self.correction.factor(features_of(self.kind, columns))
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProfile:
    """All operator models of one GPU."""

    gpu_id: str
    models: Mapping[str, OperatorModel]
    """`KIND/DTYPE` -> model."""
    all_reduce: Tables
    """As measured; a profile that was read also has the points at the borders between regimes."""
    all_reduce_error: FitError | None = None
    """Leaving out one size at a time; None: transferred from another GPU, or never measured."""
    overheads: Mapping[str, float] = field(default_factory=dict)
    """CPU and step overheads, by name; see `deployment.Overheads`."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def model(self, kind: str, dtype: str) -> OperatorModel:
        """The model of an operator; an element type that was not measured falls back to bfloat16's formula."""
        found = self.models.get(f"{kind}/{dtype}")
        if found is not None:
            return found
        return replace(self.models[f"{kind}/bfloat16"], dtype=dtype, correction=None, error=None)


def chip_of(gpu: GpuSpec, dtype: str) -> Chip:
    """The GPU with its rate for an element type; types without units of their own run at bfloat16's rate."""
    rates = {"fp8": gpu.fp8_flops, "int8": gpu.int8_ops}
    return Chip(num_sms=gpu.num_sms, bandwidth=gpu.bandwidth, flops=rates.get(dtype) or gpu.bf16_flops)


def formula_s(
    kind: str, p: Mapping[str, float], columns: Columns, chip: Chip, weight_bytes: float, act_bytes: float
) -> Array:
    """The formula alone, seconds."""
    c = columns
    if kind == "gemm":
        return gemm_s(p, c["m"], c["n"], c["k"], chip, weight_bytes, act_bytes)
    if kind == "decode_attention":
        return decode_attention_s(
            p, c["batch"], c["kv_len"], c["heads"], c["kv_heads"], c["head_dim"], c["kv_bytes"], chip
        )
    if kind == "prefill_attention":
        return prefill_attention_s(
            p, c["batch"], c["new"], c["cached"], c["heads"], c["kv_heads"], c["head_dim"], c["kv_bytes"], chip
        )
    raise ValueError(f"no operator is called {kind!r}")


def features_of(kind: str, columns: Columns) -> Array:
    """[num, num_features] what the correction depends on: powers of two of the shape, with the KV type apart."""
    c = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
    if kind == "gemm":
        # The size of the weights apart: it decides whether they stay in the L2 cache.
        return np.stack([np.log2(c["m"]), np.log2(c["n"]), np.log2(c["k"]), np.log2(c["n"] * c["k"])], axis=1)
    length = c["kv_len"] if kind == "decode_attention" else c["new"]
    width = c["kv_heads"] if kind == "decode_attention" else c["heads"]
    group, small = c["heads"] / c["kv_heads"], 3.0 * (c["kv_bytes"] < 2)
    features = [
        np.log2(c["batch"]),
        np.log2(length),
        np.log2(width),
        np.log2(group),
        2.0 * np.log2(c["head_dim"]),
        small,
    ]
    return np.stack(features, axis=1)


@cache
def load_profile(gpu_id: str) -> OperatorProfile:
    """The shipped profile of a GPU. Raises `ConfigError` if there is none."""
    path = resources.files("engine.catalog") / "profiles" / f"{gpu_id}.json"
    if not path.is_file():
        raise ConfigError(f"gpu: no operator profile for {gpu_id}")
    return profile_from_dict(json.loads(path.read_text(encoding="utf-8")))


def profile_from_dict(values: Mapping[str, Any]) -> OperatorProfile:
    """The inverse of `profile_to_dict`. Raises `ConfigError` for another format."""
    if values.get("format") != PROFILE_FORMAT:
        raise ConfigError(f"profile: format {values.get('format')!r}, not {PROFILE_FORMAT}")
    models = {}
    for name, each in values["models"].items():
        kind, dtype = name.split("/")
        correction = each["correction"]
        models[name] = OperatorModel(
            kind=kind,
            dtype=dtype,
            parameters=each["parameters"],
            correction=None
            if correction is None
            else Correction(**{key: np.array(value, dtype=np.float64) for key, value in correction.items()}),
            error=None if each["error"] is None else FitError(**each["error"]),
            source=each["source"],
        )
    reduce = {key: [(float(a), float(b)) for a, b in table] for key, table in values["all_reduce"].items()}
    return OperatorProfile(
        gpu_id=values["gpu_id"],
        models=models,
        all_reduce=with_borders(reduce, find_gpu(values["gpu_id"]).arch),
        all_reduce_error=FitError(**values["all_reduce_error"]) if values.get("all_reduce_error") else None,
        overheads=values.get("overheads", {}),
        provenance=values.get("provenance", {}),
    )


def profile_to_dict(profile: OperatorProfile) -> dict[str, Any]:
    """JSON types only; weights to six digits, which moves a prediction by less than 1e-4."""
    models = {}
    for name, model in profile.models.items():
        correction = model.correction
        models[name] = {
            "parameters": {key: float(f"{value:.6g}") for key, value in model.parameters.items()},
            "correction": None
            if correction is None
            else {
                "scales": correction.scales.tolist(),
                "support": np.round(correction.support, 4).tolist(),
                "weights": [float(f"{w:.6g}") for w in correction.weights],
            },
            "error": None if model.error is None else asdict(model.error),
            "source": model.source,
        }
    return {
        "format": PROFILE_FORMAT,
        "gpu_id": profile.gpu_id,
        "models": models,
        "all_reduce": {key: [list(pair) for pair in table] for key, table in profile.all_reduce.items()},
        "all_reduce_error": None if profile.all_reduce_error is None else asdict(profile.all_reduce_error),
        "overheads": dict(profile.overheads),
        "provenance": dict(profile.provenance),
    }


def save_profile(profile: OperatorProfile, path: Path) -> None:
    """Write a profile as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(profile_to_dict(profile), separators=(",", ":")) + "\n", encoding="utf-8")
