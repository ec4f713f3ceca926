"""Times vLLM's own scheduler; run by bench_scheduler_step.py with an interpreter that has vllm (0.32) installed.

    python vllm_scheduler_probe.py step RUNNING WAITING | admit

Prints the median microseconds of schedule() + update_from_output(), or of building, adding and admitting a prompt of
1,024 tokens. No model is loaded.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

STEPS = 100
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32000,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def make_scheduler(max_num_seqs: int) -> tuple[Any, Any]:
    """vLLM's synchronous scheduler over 100,000 blocks of 16, and its block hasher."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    init_none_hash(sha256)
    directory = Path(tempfile.mkdtemp())
    (directory / "config.json").write_text(json.dumps(CONFIG))
    model = ModelConfig(model=str(directory), skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=8192)
    scheduling = SchedulerConfig(
        max_model_len=8192,
        is_encoder_decoder=False,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(8192, max_num_seqs),
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=16, enable_prefix_caching=True)
    cache.num_gpu_blocks = 100_000
    config = VllmConfig(
        model_config=model, scheduler_config=scheduling, cache_config=cache, device_config=DeviceConfig("cpu")
    )
    config.cache_config.block_size = 16
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_cache = KVCacheConfig(
        num_blocks=100_000, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=16,
        log_stats=False,
    )
    return scheduler, get_request_block_hasher(16, sha256)


def make_request(name: str, prompt: list[int], max_tokens: int, hasher: Any) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(name, prompt, sampling, None, arrival_time=0.0, block_hasher=hasher)


def answer(plan: Any) -> Any:
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(plan.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)}, sampled_token_ids=[[7] for _ in ids]
    )


def step(num_running: int, num_waiting: int) -> float:
    scheduler, hasher = make_scheduler(num_running)
    rng = random.Random(0)
    for i in range(num_running + num_waiting):
        prompt = [rng.randrange(30_000) for _ in range(64 + i % 16)]
        scheduler.add_request(make_request(f"r{i}", prompt, 4000, hasher))
    times: list[float] = []
    while len(times) < STEPS:
        started = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        output = answer(plan)
        if plan.total_num_scheduled_tokens > num_running:  # chunks that are not the last yield no token
            known = {name: scheduler.requests[name] for name in plan.num_scheduled_tokens}
            done = [r.num_computed_tokens >= r.num_tokens for r in known.values()]
            output.sampled_token_ids = [[7] if is_done else [] for is_done in done]
        ready = time.perf_counter()
        scheduler.update_from_output(plan, output)
        ended = time.perf_counter()
        if len(plan.num_scheduled_tokens) == num_running == plan.total_num_scheduled_tokens:
            times.append((planned - started + ended - ready) * 1e6)
    return statistics.median(times)


def admit() -> float:
    scheduler, hasher = make_scheduler(256)
    rng = random.Random(0)
    times = []
    for i in range(STEPS):
        prompt = [rng.randrange(30_000) for _ in range(1024)]
        started = time.perf_counter()
        scheduler.add_request(make_request(f"r{i}", prompt, 1, hasher))
        plan = scheduler.schedule()
        times.append((time.perf_counter() - started) * 1e6)
        scheduler.update_from_output(plan, answer(plan))
    return statistics.median(times)


if __name__ == "__main__":
    print(step(int(sys.argv[2]), int(sys.argv[3])) if sys.argv[1] == "step" else admit())
