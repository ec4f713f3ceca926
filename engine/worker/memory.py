"""Measures the peak of temporary tensors in the largest step: the fact that `memory_model` predicts."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from engine.attention.base import AttentionBatch
from engine.models.loader import open_weights
from engine.models.weights import WeightSource
from engine.resolve import ResolvedConfig
from engine.worker.input_batch import InputBatch
from engine.worker.model_runner import ModelRunner


def measure_activation_bytes(resolved: ResolvedConfig, source: WeightSource | None = None) -> int:
    """Run a step of `max_num_batched_tokens` tokens and `max_num_seqs` sampled rows; peak beyond weights and cache.

    The cache has two blocks for this: the dummy sequences all live in block 0, which nobody reads. The last of them is
    a chunk behind a prefix, the case that needs most workspace.
    """
    memory = dataclasses.replace(resolved.memory, num_blocks=2)
    runner = ModelRunner(
        dataclasses.replace(resolved, memory=memory, num_host_blocks=0), source or open_weights(resolved.config.model)
    )
    batch = _largest_batch(resolved)
    if runner.device.type == "cuda":
        torch.cuda.synchronize(runner.device)
        torch.cuda.reset_peak_memory_stats(runner.device)
        before = torch.cuda.memory_allocated(runner.device)
        runner.compute_logits(batch)
        torch.cuda.synchronize(runner.device)
        return torch.cuda.max_memory_allocated(runner.device) - before
    runner.compute_logits(batch)  # compiles kernels, which must not count
    # torch keeps no statistics of CPU memory, but its profiler sees every allocation.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        runner.compute_logits(batch)
    results = recording.profiler.kineto_results if recording.profiler is not None else None
    events = [event for event in results.events() if event.name() == "[memory]"] if results is not None else []
    in_use = np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    return int(in_use.max(initial=0))


def _largest_batch(resolved: ResolvedConfig) -> InputBatch:
    """One chunk as long as allowed that ends at `max_model_len`, after other sequences that take the rest."""
    scheduler, max_len = resolved.config.scheduler, resolved.max_model_len
    num_tokens, block_size = scheduler.max_num_batched_tokens, resolved.config.cache.block_size
    chunk = min(num_tokens, max(1, max_len - 1))  # behind a prefix of at least one token
    rest = num_tokens - chunk
    counts = [*([max_len] * (rest // max_len)), *([rest % max_len] if rest % max_len else []), chunk]
    counts.sort(key=lambda count: count != 1)  # sequences with one token come first
    num_seqs = len(counts)
    starts = np.cumsum([0, *counts])
    seq_lens = np.array([*counts[:-1], max_len], dtype=np.int32)  # of the first ones, fresh prompts
    positions = np.concatenate(
        [np.arange(length - count, length) for count, length in zip(counts, seq_lens.tolist(), strict=True)]
    )
    num_rows = min(scheduler.max_num_seqs, num_tokens)
    return InputBatch(
        token_ids=np.zeros(num_tokens, dtype=np.int64),
        positions=positions,
        attention=AttentionBatch(
            num_decodes=sum(count == 1 for count in counts),
            query_starts=starts.astype(np.int32),
            seq_lens=seq_lens,
            block_tables=np.zeros((num_seqs, -(-max_len // block_size)), dtype=np.int32),
            slot_mapping=np.arange(num_tokens, dtype=np.int64) % block_size,
        ),
        sampling_requests=(),
        sampling_rows=np.arange(num_tokens - num_rows, num_tokens),
        sampling_positions=np.zeros(num_rows, dtype=np.int64),
    )
