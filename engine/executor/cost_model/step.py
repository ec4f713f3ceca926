"""Seconds of one step on a GPU, as the sum of what a decoder's forward pass launches.

    layers x (linear + attention + element-wise + all-reduce) + LM head and sampler over the sampled rows
    + step overhead (CPU work that asynchronous scheduling does not hide)

Costs that depend on one number are tabulated once per model and GPU and then interpolated, so that a step costs
microseconds to predict and many steps can be predicted in one call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from engine.catalog import GpuSpec, attention_weights
from engine.executor.cost_model.collectives import host_all_reduce_s, step_all_reduce_s
from engine.executor.cost_model.end_to_end import Factors
from engine.executor.cost_model.operators import OperatorModel, OperatorProfile, chip_of, features_of, formula_s
from engine.executor.cost_model.physics import Chip
from engine.executor.cost_model.step_shape import StepShape
from engine.model_spec import ModelSpec

Array = npt.NDArray[np.float64]

_MAX_TOKENS = 131_072
_GRAPH_SIZES = np.array([1, 2, 4, *range(8, 520, 8)])
"""Batch sizes that vLLM captures; a decode-only step is padded to the next one."""
_KV_POINTS = 4
"""Tabulated lengths per power of two."""
_KV_LENGTHS: Array = 2.0 ** np.arange(0.0, 17.25, 1.0 / _KV_POINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Element types of a deployment."""

    weights: str = "bfloat16"
    """`bfloat16`, `fp8`, `int8`, `int4` (weight-only: computes in bfloat16)."""
    kv: str = "bfloat16"

    @property
    def weight_bytes(self) -> float:
        return {"fp8": 1.0, "int8": 1.0, "int4": 0.5625}.get(self.weights, 2.0)  # int4: scales and zeros included

    @property
    def kv_bytes(self) -> float:
        return 1.0 if self.kv.startswith("fp8") else 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What is not an operator. Fitted end to end; the defaults are those of vLLM V1 with CUDA graphs."""

    layer_us: float = 12.0
    """Per layer: gaps between kernels and the small kernels (norms, rotary, cache write) at one token."""
    step_us: float = 300.0
    """Per step: launch, sampling, copies, what the device waits for in any case."""
    sequence_us: float = 1.5
    """Per scheduled sequence: input preparation, sampling, detokenising, where it is not hidden."""
    eager_layer_us: float = 90.0
    """Per layer, additionally, when no CUDA graph is replayed (eager mode): kernel launches from the CPU."""
    elementwise_passes: float = 12.0
    """Times the hidden states are read or written per layer outside of GEMMs and attention."""
    request_ms: float = 3.0
    """Per request in the server's front end, one after the other: HTTP, tokenising, hand-over to the engine."""
    delay_ms: float = 0.0
    """Per request beside that, many at a time: connection, client, templates."""
    sorts_logits: bool = False
    """Rows are sampled with top-p or top-k, which sorts the vocabulary (many models' generation_config asks for it)."""
    is_async: bool = True
    """CPU work overlaps with the device (asynchronous scheduling)."""


@dataclass(slots=True)
class StepCostModel:
    """Predicts steps of one model on one GPU type with `tensor_parallel_size` of them."""

    spec: ModelSpec
    gpu: GpuSpec
    profile: OperatorProfile
    tensor_parallel_size: int = 1
    precision: Precision = field(default_factory=Precision)
    overheads: Overheads = field(default_factory=Overheads)
    factors: Factors = field(default_factory=Factors)
    enforce_eager: bool = False
    block_size: int = 16
    _log_tokens: Array = field(init=False, repr=False)
    _log_linear: Array = field(init=False, repr=False)
    _log_head: Array = field(init=False, repr=False)
    _decode_grid: tuple[Array, Array] = field(init=False, repr=False)
    _prefill_correction: Array = field(init=False, repr=False)
    # What was worked out before: a run asks for the same few batch sizes and chunks again and again.
    _linear_by_tokens: dict[int, float] = field(init=False, repr=False, default_factory=dict)
    _head_by_rows: dict[int, float] = field(init=False, repr=False, default_factory=dict)
    _decode_by_batch: dict[int, list[float]] = field(init=False, repr=False, default_factory=dict)
    _prefill_by_chunk: dict[tuple[int, int], float] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        tokens = np.unique(np.round(np.geomspace(1, _MAX_TOKENS, 220))).astype(np.float64)
        self._log_tokens = np.log(tokens)
        # Measured noise must not make more tokens cheaper.
        self._log_linear = np.maximum.accumulate(np.log(self._tabulate_layer(tokens)))
        head = self._gemm(tokens, self._split(self.spec.vocab_size), self.spec.hidden_size)
        self._log_head = np.maximum.accumulate(np.log(head))
        self._decode_grid = self._tabulate_decode()
        self._prefill_correction = self._tabulate_prefill_correction()

    # -- what a step costs --------------------------------------------------------------------------------------------

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step."""
        num_decodes, kv_tokens, longest_kv, prefills, num_sampled = shape
        num_seqs = num_decodes + len(prefills)
        if num_seqs == 0:
            return 0.0
        attention = self._decode_attention_s(num_decodes, kv_tokens, longest_kv) if num_decodes else 0.0
        if prefills:
            attention = attention * self.factors.mixed_attention + self._prefill_attention_s(prefills)
        device = self.spec.num_layers * (self._layer_s(shape.num_tokens) + attention)
        return device + self._head_s(max(num_sampled, 1)) + self._overhead_s(num_seqs)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _padded(self, tokens: int) -> int:
        """Tokens that the linear layers see: a captured graph runs at its own size."""
        if self.enforce_eager or tokens > _GRAPH_SIZES[-1]:
            return tokens
        return int(_GRAPH_SIZES[np.searchsorted(_GRAPH_SIZES, tokens)])

    def _layer_s(self, tokens: int) -> float:
        """One layer but its attention kernel."""
        found = self._linear_by_tokens.get(tokens)
        if found is None:
            log_s = np.interp(np.log(self._padded(tokens)), self._log_tokens, self._log_linear)
            found = self._linear_by_tokens[tokens] = float(np.exp(log_s))
        return found

    def _head_s(self, rows: int) -> float:
        """LM head, and sampling at memory speed: float32 logits read a few times."""
        found = self._head_by_rows.get(rows)
        if found is None:
            head = float(np.exp(np.interp(np.log(rows), self._log_tokens, self._log_head)))
            # Sorting runs at about 650 bytes of bandwidth per element (2.2 G elements/s on an H100: published runs).
            passes = 1500.0 if self.overheads.sorts_logits else 12.0
            found = head + rows * self.spec.vocab_size * passes / self.gpu.bandwidth
            self._head_by_rows[rows] = found
        return found

    def _overhead_s(self, num_seqs: int) -> float:
        o = self.overheads
        cpu_us = o.sequence_us * num_seqs * (0.25 if o.is_async else 1.0)
        launches_us = o.eager_layer_us * self.spec.num_layers if self.enforce_eager else 0.0
        return (o.step_us + cpu_us + launches_us) * 1e-6

    def _decode_attention_s(self, num_decodes: int, kv_tokens: float, longest_kv: float) -> float:
        """One layer. The mean length sets the work; one long sequence sets a floor, since it runs on few SMs."""
        whole = self._decode_log_s(num_decodes, self._windowed(kv_tokens / num_decodes))
        longest = self._decode_log_s(1, self._windowed(longest_kv))
        return math.exp(max(whole, longest)) * self._block_factor

    @property
    def _block_factor(self) -> float:
        """Small blocks cost index work, large ones stay within the kernel's tile: measured shares are a few percent."""
        return 1.0 + 0.5 / max(self.block_size, 1)

    def _windowed(self, length: float) -> float:
        """Mean KV length that attention reads over all layers, where some have a sliding window."""
        window = self.spec.sliding_window
        if window is None:
            return max(length, 1.0)
        inside = min(length, window)
        alternates = self.spec.family == "gemma2"
        return max((inside + length) / 2.0 if alternates else inside, 1.0)

    def _decode_log_s(self, batch: int, length: float) -> float:
        row = self._decode_by_batch.get(batch)
        if row is None:
            batches, table = self._decode_grid
            x = np.clip(np.log2(max(batch, 1)), batches[0], batches[-1])
            i = min(int(x - batches[0]), len(batches) - 2)
            share = x - batches[i]
            row = self._decode_by_batch[batch] = (table[i] * (1.0 - share) + table[i + 1] * share).tolist()
        y = math.log2(length) * _KV_POINTS
        i = int(y)
        if i >= len(row) - 1:
            return row[-1]
        return row[i] + (row[i + 1] - row[i]) * (y - i)

    def _prefill_attention_s(self, prefills: Sequence[tuple[int, int]]) -> float:
        # One kernel takes all chunks: the launch floor counts once.
        floor = self.profile.model("prefill_attention", "bfloat16").parameters["launch_us"] * 1e-6
        return floor + sum([self._chunk_s(chunk) for chunk in prefills])

    def _chunk_s(self, chunk: tuple[int, int]) -> float:
        """Attention of one prefill chunk (new, cached tokens) over the launch floor."""
        found = self._prefill_by_chunk.get(chunk)
        if found is None:
            new, cached = chunk
            model, chip = self.profile.model("prefill_attention", "bfloat16"), self._chip("bfloat16")
            columns = self._attention_columns(1)
            columns |= {"new": np.array([float(new)]), "cached": np.array([self._windowed(cached) if cached else 0.0])}
            seconds = float(formula_s(model.kind, model.parameters, columns, chip, 2.0, 2.0)[0])
            y = min(math.log2(new) * _KV_POINTS, len(self._prefill_correction) - 1.001)
            i = int(y)
            low, high = self._prefill_correction[i : i + 2].tolist()
            seconds *= math.exp(low + (high - low) * (y - i))
            found = max(seconds - model.parameters["launch_us"] * 1e-6, 0.0)
            self._prefill_by_chunk[chunk] = found
        return found

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

    # -- tables -------------------------------------------------------------------------------------------------------

    def _gemm(self, m: Array, n: int, k: int, weights: str | None = None) -> Array:
        """`weights` where they are not of the deployment's type."""
        weights = weights or self.precision.weights
        model = self._gemm_model(weights if weights in ("fp8", "int8") else "bfloat16")
        columns = {"m": m, "n": np.full_like(m, float(n)), "k": np.full_like(m, float(k))}
        chip = self._chip(model.dtype)
        if weights == "fp8" and self.gpu.fp8_flops is None:  # no such units: weights are unpacked, bfloat16 computes
            model, chip = self._gemm_model("bfloat16"), self._chip("bfloat16")
            return self._weight_only(model.predict_s(columns, chip), columns, 1.0)
        if weights == "int4":
            return self._weight_only(model.predict_s(columns, chip), columns, self.precision.weight_bytes)
        size = 1.0 if weights in ("fp8", "int8") else 2.0
        return model.predict_s(columns, chip, weight_bytes=size, act_bytes=size)

    def _gemm_model(self, dtype: str) -> OperatorModel:
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

    def _tabulate_layer(self, tokens: Array) -> Array:
        """[num_tokens] seconds of one layer but its attention kernel."""
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

    def _feed_forward(self, tokens: Array) -> Array:
        spec = self.spec
        if not spec.num_experts:
            width = self._split(spec.intermediate_size)
            return self._gemm(tokens, 2 * width, spec.hidden_size) + self._gemm(tokens, spec.hidden_size, width)
        # Experts: every active one's weights are read once, its rows are the tokens routed to it.
        top_k = spec.num_experts_per_token or 1
        width = self._split(spec.expert_intermediate_size or spec.intermediate_size)
        active = spec.num_experts * (1.0 - (1.0 - top_k / spec.num_experts) ** tokens)
        rows = np.maximum(tokens * top_k / active, 1.0)
        launch = self.profile.model("gemm", "bfloat16").parameters["launch_us"] * 1e-6
        one = self._gemm(rows, 2 * width, spec.hidden_size) + self._gemm(rows, spec.hidden_size, width) - 2 * launch
        # A grouped kernel fills the chip with all experts' tiles: one expert alone cannot.
        weights = active * 3.0 * width * spec.hidden_size * self.precision.weight_bytes / (0.8 * self.gpu.bandwidth)
        flops = tokens * top_k * 6.0 * width * spec.hidden_size / (0.5 * self._chip(self.precision.weights).flops)
        router = self._gemm(tokens, spec.num_experts, spec.hidden_size)
        return router + np.minimum(active * one, np.maximum(weights, flops) * 1.15 + 2 * launch) + 2 * launch

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

    def _tabulate_decode(self) -> tuple[Array, Array]:
        """(log2 batch, log seconds [batch, length]) of one layer, lengths as `_KV_LENGTHS`."""
        model, chip = self.profile.model("decode_attention", "bfloat16"), self._chip("bfloat16")
        batches = np.arange(0.0, 12.0)
        table = np.empty((len(batches), len(_KV_LENGTHS)))
        for i, log_batch in enumerate(batches):
            columns = self._attention_columns(len(_KV_LENGTHS)) | {"kv_len": _KV_LENGTHS}
            columns["batch"] = np.full(len(_KV_LENGTHS), 2.0**log_batch)
            table[i] = np.log(model.predict_s(columns, chip) * self.factors.decode_attention)
        # Nor longer contexts or larger batches.
        return batches, np.maximum.accumulate(np.maximum.accumulate(table, axis=1), axis=0)

    def _tabulate_prefill_correction(self) -> Array:
        """Log of the learned factor on prefill attention by the chunk's length, lengths as `_KV_LENGTHS`."""
        model = self.profile.model("prefill_attention", "bfloat16")
        if model.correction is None:
            return np.zeros(len(_KV_LENGTHS))
        columns = self._attention_columns(len(_KV_LENGTHS)) | {"new": _KV_LENGTHS}
        return np.asarray(np.log(model.correction.factor(features_of(model.kind, columns))))
