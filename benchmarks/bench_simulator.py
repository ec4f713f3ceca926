"""How fast the simulator is: `python benchmarks/bench_simulator.py [--requests FILE.csv] [--model M] [--gpu G]`.

FILE.csv has the columns arrived_at (s), num_prefill_tokens, num_decode_tokens; which of its rows cannot be replayed is
said on stderr. Without it 5,000 requests of 512 in and 256 out arrive at 11.3 per second. All per-request and per-step
records are kept, prefix caching is on. Prints wall seconds, simulated seconds and steps; the time of three million
dictionary updates, of 1,024 keys and of as many keys as updates, tells how fast the machine is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from engine.compiled import is_used
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.simulation import SimulatedDevice, with_gpu_defaults
from workbench.loadgen.simulated import SimulatedTarget
from workbench.scenario import Scenario, ScenarioError
from workbench.workload import generate_workload


def make_scenario(model: str, requests: Path | None) -> Scenario:
    workload: dict[str, Any]
    if requests is not None:
        workload = {"arrivals": {"kind": "trace", "path": str(requests)}}
    else:
        lengths = {
            "input_tokens": {"kind": "constant", "value": 512},
            "output_tokens": {"kind": "constant", "value": 256},
        }
        workload = {
            "num_requests": 5000,
            "arrivals": {"kind": "poisson", "rate": 11.3},
            "classes": [{"name": "all", **lengths}],
        }
    return Scenario.model_validate({"name": "simulator", "model": model, "workload": workload})


def dict_updates_s(mask: int) -> float:
    """Three million updates of the keys under `mask`."""
    started = time.perf_counter()
    table: dict[int, int] = {}
    for i in range(3_000_000):
        table[i & mask] = i
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=Path)
    parser.add_argument("--model", default="meta-llama/Meta-Llama-3-8B")
    parser.add_argument("--gpu", default="a100-80g-sxm")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    few_keys_s, new_keys_s = dict_updates_s(1023), dict_updates_s(-1)
    try:
        scenario = make_scenario(args.model, args.requests)
        device = SimulatedDevice.of(args.gpu)
        config = EngineConfig.from_dict(with_gpu_defaults({"model": args.model}, device.gpu))
        target = SimulatedTarget(config, device)
        workload = generate_workload(scenario, target.limits)
    except (EngineError, ScenarioError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if workload.summary.source is not None:
        sys.stderr.writelines(f"{line}\n" for line in workload.summary.source.describe())
    started = time.perf_counter()
    record = target.run(workload)
    result = {
        "wall_s": time.perf_counter() - started,
        "simulated_s": record.duration_s,
        "num_steps": len(record.steps),
        "num_requests": len(record.requests),
        "three_million_dict_updates_s": {"few_keys": few_keys_s, "new_keys": new_keys_s},
        "compiled": is_used(),
    }
    if args.json:
        print(json.dumps(result))
        return 0
    wall = result["wall_s"]
    print(
        f"{result['num_requests']} requests, {result['num_steps']} steps, {result['simulated_s']:.1f} s simulated in "
        f"{wall:.2f} s: {result['simulated_s'] / wall:.0f} x real time, {result['num_steps'] / wall:,.0f} steps/s, "
        f"{result['num_requests'] / wall:,.0f} requests/s as {'machine code' if is_used() else 'Python'} "
        f"(three million dictionary updates: {few_keys_s:.2f} s, of new keys {new_keys_s:.2f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
