"""Seconds of one step on a GPU, as the sum of what a decoder's forward pass launches.

    layers x (linear + attention + element-wise + all-reduce) + LM head and sampler over the sampled rows
    + step overhead (CPU work that asynchronous scheduling does not hide)

Costs that depend on one number are tabulated once per deployment and then interpolated, so that a step costs
microseconds to predict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.executor.cost_model.rank_operators import RankOperators
from engine.executor.cost_model.step_shape import StepShape

Array = npt.NDArray[np.float64]

_MAX_TOKENS = 131_072
_GRAPH_SIZES = np.array([1, 2, 4, *range(8, 520, 8)])
"""Batch sizes that vLLM captures; a decode-only step is padded to the next one."""
_KV_POINTS = 4
"""Tabulated lengths per power of two."""
_KV_LENGTHS: Array = 2.0 ** np.arange(0.0, 17.25, 1.0 / _KV_POINTS)


@dataclass(slots=True)
class StepCostModel:
    """Predicts steps of one deployment; its ranks work alike."""

    rank: RankOperators
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
        self._log_linear = np.maximum.accumulate(np.log(self.rank.layer_s(tokens)))
        self._log_head = np.maximum.accumulate(np.log(self.rank.head_s(tokens)))
        self._decode_grid = self._tabulate_decode()
        self._prefill_correction = np.log(self.rank.prefill_correction(_KV_LENGTHS))

    # -- what a step costs --------------------------------------------------------------------------------------------

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step."""
        num_decodes, kv_tokens, longest_kv, prefills, num_sampled = shape
        num_seqs = num_decodes + len(prefills)
        if num_seqs == 0:
            return 0.0
        attention = self._decode_attention_s(num_decodes, kv_tokens, longest_kv) if num_decodes else 0.0
        if prefills:
            attention = attention * self.rank.factors.mixed_attention + self._prefill_attention_s(prefills)
        device = self.rank.spec.num_layers * (self._layer_s(shape.num_tokens) + attention)
        return device + self._head_s(max(num_sampled, 1)) + self._overhead_s(num_seqs)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _padded(self, tokens: int) -> int:
        """Tokens that the linear layers see: a captured graph runs at its own size."""
        if self.rank.enforce_eager or tokens > _GRAPH_SIZES[-1]:
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
            passes = 1500.0 if self.rank.overheads.sorts_logits else 12.0
            found = head + rows * self.rank.spec.vocab_size * passes / self.rank.gpu.bandwidth
            self._head_by_rows[rows] = found
        return found

    def _overhead_s(self, num_seqs: int) -> float:
        o = self.rank.overheads
        cpu_us = o.sequence_us * num_seqs * (0.25 if o.is_async else 1.0)
        launches_us = o.eager_layer_us * self.rank.spec.num_layers if self.rank.enforce_eager else 0.0
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
        window = self.rank.spec.sliding_window
        if window is None:
            return max(length, 1.0)
        inside = min(length, window)
        alternates = self.rank.spec.family == "gemma2"
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
        return self.rank.prefill_launch_s + sum([self._chunk_s(chunk) for chunk in prefills])

    def _chunk_s(self, chunk: tuple[int, int]) -> float:
        """Attention of one prefill chunk (new, cached tokens) over the launch floor."""
        found = self._prefill_by_chunk.get(chunk)
        if found is None:
            new, cached = chunk
            seconds = self.rank.prefill_attention_s(new, self._windowed(cached) if cached else 0.0)
            y = min(math.log2(new) * _KV_POINTS, len(self._prefill_correction) - 1.001)
            i = int(y)
            low, high = self._prefill_correction[i : i + 2].tolist()
            seconds *= math.exp(low + (high - low) * (y - i))
            found = max(seconds - self.rank.prefill_launch_s, 0.0)
            self._prefill_by_chunk[chunk] = found
        return found

    # -- tables -------------------------------------------------------------------------------------------------------

    def _tabulate_decode(self) -> tuple[Array, Array]:
        """(log2 batch, log seconds [batch, length]) of one layer, lengths as `_KV_LENGTHS`."""
        batches = np.arange(0.0, 12.0)
        table = np.empty((len(batches), len(_KV_LENGTHS)))
        for i, log_batch in enumerate(batches):
            table[i] = np.log(self.rank.decode_attention_s(2.0**log_batch, _KV_LENGTHS))
        # Nor longer contexts or larger batches.
        return batches, np.maximum.accumulate(np.maximum.accumulate(table, axis=1), axis=0)
