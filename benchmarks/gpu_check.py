"""What needs a GPU, in one run of a few minutes: `python benchmarks/gpu_check.py [--json]`. Uses `engine` alone.

1. Greedy tokens with the Triton backend equal those with the torch reference, in float32, on seeded models, under
   chunked prefill, preemption and several block sizes.
2. A sweep of the token budget and the sequence cap on the largest built-in model: output tokens per second.

Exits with 2 where there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

import torch

from engine.llm import LLM
from engine.sampling_params import SamplingParams


def prompts(count: int, longest: int, vocabulary: int = 256) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(vocabulary) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


def equality() -> list[dict[str, Any]]:
    """Prompts whose greedy tokens differ between the two backends, per setting."""
    rows = []
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    for block_size in (16, 32):
        for options in (
            {},
            {"max_num_batched_tokens": 48, "max_num_seqs": 16},
            {"num_blocks": 90, "max_model_len": 256},
        ):
            answers = []
            for backend in ("torch_reference", "triton"):
                llm = LLM("tiny", dtype="float32", attention_backend=backend, block_size=block_size, **options)
                answers.append([g.token_ids for g in llm.generate(prompts(40, 200), params)])
                llm.close()
            differing = sum(a != b for a, b in zip(*answers, strict=True))
            rows.append({"block_size": block_size, **options, "prompts": 40, "differing": differing})
    return rows


def throughput(model: str) -> list[dict[str, Any]]:
    """Output tokens per second for some budgets and caps."""
    rows = []
    for max_num_seqs in (16, 64, 256):
        for budget in (512, 2048, 8192):
            llm = LLM(
                model, dtype="bfloat16", max_num_seqs=max_num_seqs, max_num_batched_tokens=max(budget, max_num_seqs)
            )
            params = SamplingParams(max_tokens=64, ignore_eos=True)
            llm.generate(prompts(8, 64), params)
            started = time.perf_counter()
            llm.generate(prompts(256, 256), params)
            torch.cuda.synchronize()
            rate = 256 * 64 / (time.perf_counter() - started)
            rows.append({"max_num_seqs": max_num_seqs, "max_num_batched_tokens": budget, "output_tokens_per_s": rate})
            llm.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="small", help="built-in model of the throughput part")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write(
            "no CUDA device: the kernels are proved by `make test` (interpreted and compiled ahead of time)\n"
        )
        return 2
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "equality": equality(),
        "throughput": throughput(args.model),
    }
    if args.json:
        print(json.dumps(result))
        return 0
    print(f"{result['device']}, torch {result['torch']}")
    for row in result["equality"] + result["throughput"]:
        print("  ".join(f"{name}={value}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
