"""How fast the simulator is: `python benchmarks/bench_simulator.py [--requests FILE.csv | --load NAME]`.

FILE.csv has the columns arrived_at (s), num_prefill_tokens, num_decode_tokens; which of its rows cannot be replayed is
said on stderr. Without it the load `steady`, or another of `LOADS`, arrives. All per-request and per-step records are
kept, prefix caching is on. Prints wall seconds, simulated seconds and steps; the time of three million
dictionary updates, of 1,024 keys and of as many keys as updates, tells how fast the machine is.

`--vidur-python PYTHON`, an interpreter with vidur 0.0.26 installed, times Vidur on the same requests, in turns, and
takes the best of each.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine.compiled import is_used
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.simulation import SimulatedDevice, with_gpu_defaults
from workbench.loadgen.simulated import SimulatedTarget
from workbench.metrics.records import RunRecord
from workbench.scenario import Scenario, ScenarioError
from workbench.workload import generate_workload
from workbench.workload.records import Workload

PROBE = Path(__file__).with_name("vidur_probe.py")
TURNS = 3


def tokens(mean: int, sigma: float = 0.0) -> dict[str, Any]:
    if not sigma:
        return {"kind": "constant", "value": mean}
    return {"kind": "lognormal", "mean": mean, "sigma": sigma, "max": 8 * mean}


LOADS: dict[str, tuple[int, float, dict[str, Any], dict[str, Any]]] = {
    "steady": (5000, 11.3, tokens(512), tokens(256)),
    "chat": (3000, 6.4, tokens(320, sigma=0.9), tokens(250, sigma=0.8)),
    "prompts": (2000, 8.0, tokens(1024), tokens(128)),
    "million": (1_000_000, 80.0, tokens(128), tokens(32)),
}
"""Name -> number of requests, arrivals per second, tokens in and out."""


def make_scenario(model: str, requests: Path | None, load: str) -> Scenario:
    workload: dict[str, Any]
    if requests is not None:
        workload = {"arrivals": {"kind": "trace", "path": str(requests)}}
    else:
        count, rate, prompt, answer = LOADS[load]
        workload = {
            "num_requests": count,
            "arrivals": {"kind": "poisson", "rate": rate},
            "classes": [{"name": "all", "input_tokens": prompt, "output_tokens": answer}],
        }
    return Scenario.model_validate({"name": "simulator", "model": model, "workload": workload})


def dict_updates_s(mask: int) -> float:
    """Three million updates of the keys under `mask`."""
    started = time.perf_counter()
    table: dict[int, int] = {}
    for i in range(3_000_000):
        table[i & mask] = i
    return time.perf_counter() - started


def timed(target: SimulatedTarget, workload: Workload) -> tuple[RunRecord, float]:
    started = time.perf_counter()
    record = target.run(workload)
    return record, time.perf_counter() - started


def in_turns(target: SimulatedTarget, workload: Workload, python: str) -> tuple[RunRecord, float, float]:
    """(record, our seconds, Vidur's), the best of each."""
    record, first_s = timed(target, workload)
    ours, theirs = [first_s], []
    for _ in range(TURNS):
        theirs.append(time_vidur(python, workload, record, target))
        ours.append(timed(target, workload)[1])
    return record, min(ours), min(theirs)


def time_vidur(python: str, workload: Workload, record: RunRecord, target: SimulatedTarget) -> float:
    """Seconds of Vidur's loop over the same requests, with our mean step."""
    step_ms = 1e3 * float((record.steps.end_s - record.steps.start_s).mean())
    scheduler = target.resolved.config.scheduler
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("arrived_at", "num_prefill_tokens", "num_decode_tokens"))
        columns = workload.arrival_s, workload.num_prompt_tokens, workload.max_output_tokens
        writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
        stream.flush()
        sizes = str(scheduler.max_num_seqs), str(scheduler.max_num_batched_tokens)
        command = [python, str(PROBE), stream.name, f"{step_ms:.3f}", *sizes]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{python} {PROBE.name}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return float(done.stdout.split()[-2])


def describe(result: dict[str, Any]) -> str:
    wall_s, simulated_s, machine = result["wall_s"], result["simulated_s"], result["three_million_dict_updates_s"]
    num_requests, num_steps, vidur_s = result["num_requests"], result["num_steps"], result["vidur_s"]
    text = (
        f"{num_requests} requests, {num_steps} steps, {simulated_s:.1f} s simulated in {wall_s:.2f} s: "
        f"{simulated_s / wall_s:.0f} x real time, {num_steps / wall_s:,.0f} steps/s, "
        f"{num_requests / wall_s:,.0f} requests/s as {'machine code' if result['compiled'] else 'Python'} "
        f"(three million dictionary updates: {machine['few_keys']:.2f} s, of new keys {machine['new_keys']:.2f} s)"
    )
    if vidur_s is None:
        return text
    return f"{text}\nVidur's event loop on the same requests: {vidur_s:.2f} s, {vidur_s / wall_s:.1f} times as long"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=Path)
    parser.add_argument("--load", choices=LOADS, default="steady")
    parser.add_argument("--model", default="meta-llama/Meta-Llama-3-8B")
    parser.add_argument("--gpu", default="a100-80g-sxm")
    parser.add_argument("--vidur-python", metavar="PYTHON", help="interpreter with vidur 0.0.26 installed")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        scenario = make_scenario(args.model, args.requests, args.load)
        device = SimulatedDevice.of(args.gpu)
        config = EngineConfig.from_dict(with_gpu_defaults({"model": args.model}, device.gpu))
        target = SimulatedTarget(config, device)
        workload = generate_workload(scenario, target.limits)
    except (EngineError, ScenarioError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if workload.summary.source is not None:
        sys.stderr.writelines(f"{line}\n" for line in workload.summary.source.describe())
    if args.vidur_python:
        record, wall_s, theirs_s = in_turns(target, workload, args.vidur_python)
    else:
        (record, wall_s), theirs_s = timed(target, workload), None
    result = {
        "wall_s": wall_s,
        "simulated_s": record.duration_s,
        "num_steps": len(record.steps),
        "num_requests": len(record.requests),
        "three_million_dict_updates_s": {"few_keys": dict_updates_s(1023), "new_keys": dict_updates_s(-1)},
        "compiled": is_used(),
        "vidur_s": theirs_s,
    }
    print(json.dumps(result) if args.json else describe(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
