"""One step on the device: copies, forward pass, sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engine.attention.base import AttentionShape, Int64Array
from engine.attention.registry import build_backend
from engine.models.decoder import Decoder
from engine.models.weights import WeightSource
from engine.outputs import ModelRunnerOutput, SchedulerOutput
from engine.request import Request
from engine.resolve import ResolvedConfig
from engine.worker.device import TORCH_DTYPES
from engine.worker.input_batch import InputBatch, InputBatchBuilder
from engine.worker.kv_cache import KvCache
from engine.worker.sampler import Sampler, top_logprobs


class ModelRunner:
    """Owns the model, the KV cache and what is kept per request between steps."""

    def __init__(self, resolved: ResolvedConfig, source: WeightSource) -> None:
        config, spec = resolved.config, resolved.spec
        self.device = torch.device(config.device.device)
        dtype = TORCH_DTYPES[resolved.dtype]
        self._model = Decoder(
            spec, source, dtype=dtype, device=self.device, num_positions=min(spec.max_position, resolved.max_model_len)
        )
        self._cache = KvCache(
            resolved.kv_geometry,
            resolved.num_blocks,
            dtype=TORCH_DTYPES[resolved.kv_cache_dtype],
            device=self.device,
            num_host_blocks=resolved.num_host_blocks,
        )
        shape = AttentionShape(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=config.cache.block_size,
            scale=spec.head_dim**-0.5,
        )
        self._backend = build_backend(config.device.attention_backend, shape, self.device)
        self._batches = InputBatchBuilder(
            block_size=config.cache.block_size,
            max_model_len=resolved.max_model_len,
            max_num_seqs=config.scheduler.max_num_seqs,
        )
        self._sampler = Sampler(config.model.seed)

    @torch.inference_mode()
    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Carry out a plan; see `Executor.execute`."""
        self._forget(plan)
        self._cache.swap_out(plan.swap_out)
        self._cache.swap_in(plan.swap_in)
        self._cache.copy_blocks(plan.copies)
        if not plan.requests:
            return ModelRunnerOutput(sampled_token_ids={})
        plan = _without_ended(plan)
        if not plan.requests:
            return ModelRunnerOutput(sampled_token_ids={})
        batch = self._batches.build(plan)
        logits = self.compute_logits(batch)
        if not batch.sampling_requests:
            return ModelRunnerOutput(sampled_token_ids={})
        tokens = self._sampler.sample(logits, batch.sampling_requests, batch.sampling_positions.tolist())
        sampled = {request.request_id: token for request, token in zip(batch.sampling_requests, tokens, strict=True)}
        self._batches.record_sampled(sampled)
        return ModelRunnerOutput(sampled_token_ids=sampled, logprobs=_logprobs(logits, batch.sampling_requests))

    @torch.inference_mode()
    def compute_logits(self, batch: InputBatch) -> torch.Tensor:
        """The forward pass: keys and values go to the cache, logits of the sampling rows come back.

        Returns [num_sampling, vocab_size].
        """
        attend = self._backend.prepare(batch.attention)
        token_ids, positions = self._upload(batch.token_ids), self._upload(batch.positions)
        hidden = self._model.forward(token_ids, positions, attend, self._cache.layers)
        return self._model.logits(hidden[self._upload(batch.sampling_rows)])

    def _upload(self, array: Int64Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _forget(self, plan: SchedulerOutput) -> None:
        self._batches.forget(plan.finished_request_ids)
        self._batches.forget(plan.preempted_request_ids)


def _logprobs(logits: torch.Tensor, requests: Sequence[Request]) -> Mapping[str, Mapping[int, float]]:
    """Of the rows that asked; logits [num_requests, vocab_size]."""
    return {
        request.request_id: top_logprobs(logits[row], request.sampling.num_logprobs)
        for row, request in enumerate(requests)
        if request.sampling.num_logprobs
    }


def _without_ended(plan: SchedulerOutput) -> SchedulerOutput:
    """The plan less requests that ended after it was made (asynchronous scheduling): they have no blocks any more."""
    if all(request.block_ids for request in plan.requests):
        return plan
    kept = [i for i, request in enumerate(plan.requests) if request.block_ids]
    return plan._replace(
        requests=[plan.requests[i] for i in kept],
        num_new_tokens=[plan.num_new_tokens[i] for i in kept],
        num_computed_tokens=[plan.num_computed_tokens[i] for i in kept],
        unsampled={new for new, old in enumerate(kept) if old in plan.unsampled},
    )
