"""The operators that one rank launches, for whole columns of token counts, rows or lengths at once.

layer = linear layers + element-wise + all-reduce, and attention apart; LM head
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from engine.catalog import GpuSpec, attention_weights
from engine.executor.cost_model.collectives import host_all_reduce_s, step_all_reduce_s
from engine.executor.cost_model.deployment import Overheads, Precision
from engine.executor.cost_model.end_to_end import Factors
from engine.executor.cost_model.operators import OperatorModel, OperatorProfile, chip_of, features_of, formula_s
from engine.executor.cost_model.physics import Chip
from engine.model_spec import ModelSpec

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOperators:
    """One of `tensor_parallel_size` GPUs with its share of a model."""

    spec: ModelSpec
    gpu: GpuSpec
    profile: OperatorProfile
    tensor_parallel_size: int = 1
    precision: Precision = field(default_factory=Precision)
    overheads: Overheads = field(default_factory=Overheads)
    factors: Factors = field(default_factory=Factors)
    enforce_eager: bool = False

    def layer_s(self, tokens: Array) -> Array:
        """[num] seconds of one layer but its attention kernel: linear layers, element-wise kernels, all-reduce."""
        spec = self.spec
        heads, kv_heads = self._split(spec.num_heads), max(self._split(spec.num_kv_heads), 1)
        attention = attention_weights(spec.name, self.precision.weights)
        linear = self._gemm(tokens, (heads + 2 * kv_heads) * spec.head_dim, spec.hidden_size, attention)
        linear = linear + self._gemm(tokens, spec.hidden_size, heads * spec.head_dim, attention)
        linear = linear + self._feed_forward(tokens)
        o, factors = self.overheads, self.factors
        elementwise = o.elementwise_passes * tokens * spec.hidden_size * 2.0 / self.gpu.bandwidth
        reduced = self._all_reduce(tokens) * factors.all_reduce(tokens)
        return linear * factors.linear(tokens) + elementwise + reduced + o.layer_us * 1e-6

    def head_s(self, rows: Array) -> Array:
        """[num] seconds of the LM head's GEMM."""
        return self._gemm(rows, self._split(self.spec.vocab_size), self.spec.hidden_size)

    def decode_attention_s(self, batch: float, kv_lengths: Array) -> Array:
        """[num] seconds of one layer for `batch` sequences of each length."""
        model, chip = self.profile.model("decode_attention", "bfloat16"), self._chip("bfloat16")
        columns = self._attention_columns(len(kv_lengths)) | {"kv_len": kv_lengths}
        columns["batch"] = np.full(len(kv_lengths), batch)
        return model.predict_s(columns, chip) * self.factors.decode_attention

    def prefill_attention_s(self, new: int, cached: float) -> float:
        """Seconds of one layer for a chunk of `new` tokens behind `cached`, without the learned correction."""
        model, chip = self.profile.model("prefill_attention", "bfloat16"), self._chip("bfloat16")
        columns = self._attention_columns(1)
        columns |= {"new": np.array([float(new)]), "cached": np.array([cached])}
        return float(formula_s(model.kind, model.parameters, columns, chip, 2.0, 2.0)[0])

    def prefill_correction(self, new: Array) -> Array:
        """[num] the learned factor on prefill attention of chunks of so many tokens."""
        model = self.profile.model("prefill_attention", "bfloat16")
        if model.correction is None:
            return np.ones(len(new))
        return model.correction.factor(features_of(model.kind, self._attention_columns(len(new)) | {"new": new}))

    @property
    def prefill_launch_s(self) -> float:
        """Launch floor of the prefill attention kernel."""
        return self.profile.model("prefill_attention", "bfloat16").parameters["launch_us"] * 1e-6

    # -- parts of a layer ---------------------------------------------------------------------------------------------

    def _gemm(self, m: Array, n: int, k: int, weights: str | None = None) -> Array:
        """`weights` where they are not of the deployment's type."""
        weights = weights or self.precision.weights
        computes = weights == "int8" or (weights == "fp8" and self.gpu.fp8_flops is not None)
        dtype, size = weights if computes else "bfloat16", Precision(weights=weights).weight_bytes
        model, chip = self._gemm_model(dtype), self._chip(dtype)
        columns = {"m": m, "n": np.full_like(m, float(n)), "k": np.full_like(m, float(k))}
        if size < 2.0 and not computes:  # no such units: weights are unpacked, bfloat16 computes
            return self._weight_only(model.predict_s(columns, chip), columns, size)
        return model.predict_s(columns, chip, weight_bytes=size, act_bytes=size)

    def _gemm_model(self, dtype: str) -> OperatorModel:
        """With what a server makes of the overlap of reading and computing."""
        model = self.profile.model("gemm", dtype)
        sharpness = model.parameters["sharpness"] * self.factors.overlap
        return replace(model, parameters={**model.parameters, "sharpness": sharpness})

    def _weight_only(self, dense_s: Array, columns: dict[str, Array], weight_bytes: float) -> Array:
        """bfloat16 GEMM with smaller weights: faster where weights are the traffic, slower where unpacking computes."""
        p = self.profile.model("gemm", "bfloat16").parameters
        saved = columns["n"] * columns["k"] * (2.0 - weight_bytes) / (p["memory"] * self.gpu.bandwidth)
        compute = 2.0 * columns["m"] * columns["n"] * columns["k"] / (p["compute"] * self._chip("bfloat16").flops)
        memory_bound = np.clip(1.0 - compute / np.maximum(dense_s, 1e-9), 0.0, 1.0)
        return np.maximum(dense_s - saved * memory_bound, dense_s * weight_bytes / 2.0) + 1e-6

    def _feed_forward(self, tokens: Array) -> Array:
        spec = self.spec
        if spec.num_experts:
            return self._experts(tokens, spec.num_experts, spec.num_experts_per_token or 1)
        width = self._split(spec.intermediate_size)
        return self._gemm(tokens, 2 * width, spec.hidden_size) + self._gemm(tokens, spec.hidden_size, width)

    def _experts(self, tokens: Array, num_experts: int, top_k: int) -> Array:
        """Every active expert's weights are read once, its rows are the tokens routed to it."""
        spec = self.spec
        width = self._split(spec.expert_intermediate_size or spec.intermediate_size)
        active = num_experts * (1.0 - (1.0 - top_k / num_experts) ** tokens)
        rows = np.maximum(tokens * top_k / active, 1.0)
        launch = self.profile.model("gemm", "bfloat16").parameters["launch_us"] * 1e-6
        one = self._gemm(rows, 2 * width, spec.hidden_size) + self._gemm(rows, spec.hidden_size, width) - 2 * launch
        # A grouped kernel fills the chip with all experts' tiles: one expert alone cannot.
        weights = active * 3.0 * width * spec.hidden_size * self.precision.weight_bytes / (0.8 * self.gpu.bandwidth)
        flops = tokens * top_k * 6.0 * width * spec.hidden_size / (0.5 * self._chip(self.precision.weights).flops)
        grouped = np.maximum(weights, flops) * 1.15 + 2 * launch
        # All experts' weights come from memory; those of one small GEMM were timed in the L2 cache, if at all.
        one_by_one = np.maximum(active * one, 0.8 * weights)
        return self._gemm(tokens, num_experts, spec.hidden_size) + np.minimum(one_by_one, grouped) + 2 * launch

    def _all_reduce(self, tokens: Array) -> Array:
        """Two per layer: after attention and after the feed-forward block."""
        tp = self.tensor_parallel_size
        if tp == 1:
            return np.zeros_like(tokens)
        seconds = []
        link = self.gpu.link_bandwidth or 16e9
        for count in tokens.tolist():
            size = count * self.spec.hidden_size * 2.0
            if "no P2P" in self.gpu.link_type:
                seconds.append(2.0 * host_all_reduce_s(tp, size, link))
                continue
            found = step_all_reduce_s(self.profile.all_reduce, tp, size, graph=not self.enforce_eager)
            if found is None:
                found = 12e-6 + 2.0 * (tp - 1) / tp * size / (0.7 * link)
            seconds.append(2.0 * found)
        return np.array(seconds)

    def _attention_columns(self, count: int) -> dict[str, Array]:
        heads = max(self._split(self.spec.num_heads), 1)
        kv_heads = max(self._split(self.spec.num_kv_heads), 1)
        values = {
            "batch": 1.0,
            "heads": float(heads),
            "kv_heads": float(kv_heads),
            "head_dim": float(self.spec.head_dim),
            "kv_bytes": self.precision.kv_bytes,
        }
        return {name: np.full(count, value) for name, value in values.items()}

    def _chip(self, dtype: str) -> Chip:
        """With the rate of its tensor units under load."""
        chip = chip_of(self.gpu, dtype)
        return replace(chip, flops=chip.flops / self.factors.compute)

    def _split(self, size: int) -> int:
        """This rank's share of a dimension."""
        return -(-size // self.tensor_parallel_size)
