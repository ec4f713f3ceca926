"""What HTTP and the load generator add: the same scenario in process and through `workbench serve` and Locust.

    python benchmarks/bench_http_overhead.py [--model smollm2-135m] [--rate 1] [--requests 24] [--rounds 3]

Both run in turn, round after round, so that a machine that slows down slows both; latencies are pooled over the rounds.
Arrivals are constant, below saturation, with at most 4 requests at once. Exit code 1 if the p50 of TTFT or TPOT differs
by more than 10 % or 5 ms, whichever is larger.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# As the command line does: threads that spin while they wait would take the load generator's core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from workbench.loadgen.embedded import EmbeddedTarget
from workbench.loadgen.endpoint import EndpointTarget
from workbench.loadgen.endpoint_record import describe_load
from workbench.metrics.definitions import PER_REQUEST, is_completed
from workbench.metrics.records import FloatArray, RunRecord
from workbench.scenario import Scenario, engine_spec, parse_scenario
from workbench.services.targets import RunnableTarget
from workbench.workload import generate_workload

SCENARIO = """
name: http-overhead
model: {model}
engine: {{max_model_len: 512, device_memory: 1GiB{threads}}}
workload:
  num_requests: {requests}
  max_concurrency: 4
  arrivals: {{kind: constant, rate: {rate}}}
  classes:
    - name: chat
      input_tokens: {{kind: uniform, low: 32, high: 128}}
      output_tokens: {{kind: uniform, low: 16, high: 32}}
"""
METRICS = ("ttft_s", "tpot_s", "e2el_s")
JUDGED = ("ttft_s", "tpot_s")


@contextmanager
def server(scenario: Scenario) -> Iterator[str]:
    """`workbench serve` with the scenario's engine; gives its address."""
    settings = [part for name, value in scenario.engine.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-c", "from workbench.cli.main import main; main()", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--model", scenario.model, *settings], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            sys.exit(f"the server did not start: {line}{process.stderr.read()}")
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=10)


def run(target: RunnableTarget, scenario: Scenario, seed: int) -> RunRecord:
    record = target.run(generate_workload(scenario, target.limits, seed=seed))
    done = is_completed(record.requests)
    if not done.all():
        sys.exit(f"only {done.sum()} of {len(done)} requests completed: {next(iter(record.requests.errors.values()))}")
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rate", type=float, default=1.0, help="requests/s")
    parser.add_argument("--requests", type=int, default=24, help="per round and side")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of the engine; default: all CPUs")
    options = parser.parse_args()
    threads = "" if options.threads is None else f", threads: {options.threads}"
    scenario = parse_scenario(
        SCENARIO.format(model=options.model, rate=options.rate, requests=options.requests, threads=threads)
    )
    pooled: dict[str, dict[str, list[FloatArray]]] = {
        side: {name: [] for name in METRICS} for side in ("in process", "over HTTP")
    }
    loads = []
    with server(scenario) as url:
        embedded = EmbeddedTarget(engine_spec(scenario))
        endpoint = EndpointTarget(url, vocab_size=embedded.limits.vocab_size)
        targets: dict[str, RunnableTarget] = {"in process": embedded, "over HTTP": endpoint}
        for seed in range(options.rounds):  # another seed each round: the server keeps its prefix cache
            for side, target in targets.items():
                record = run(target, scenario, seed)
                for name in METRICS:
                    pooled[side][name].append(PER_REQUEST[name](record.requests))
                if "load" in record.engine:
                    loads.append(describe_load(record.engine["load"]))
    print(f"{options.model}, {options.rate:g} requests/s, {options.rounds} x {options.requests} requests a side")
    for load in loads:
        print(f"  {load}")
    sys.exit(0 if report(pooled) else 1)


def report(pooled: dict[str, dict[str, list[FloatArray]]]) -> bool:
    """Print both sides; True if they agree."""
    agree = True
    for name in METRICS:
        values = {side: np.concatenate(columns[name]) for side, columns in pooled.items()}
        p50, p90 = ({side: float(np.nanpercentile(each, q)) for side, each in values.items()} for q in (50, 90))
        difference_s = p50["over HTTP"] - p50["in process"]
        allowed_s = max(0.1 * p50["in process"], 0.005)
        verdict = ""
        if name in JUDGED:
            agree &= abs(difference_s) <= allowed_s
            verdict = f"  {'ok' if abs(difference_s) <= allowed_s else 'TOO FAR'} (allowed {allowed_s * 1e3:.1f} ms)"
        print(
            f"{name:7s} p50 {p50['in process'] * 1e3:7.2f} ms in process, {p50['over HTTP'] * 1e3:7.2f} ms over HTTP, "
            f"difference {difference_s * 1e3:+6.2f} ms{verdict}; "
            f"p90 {p90['in process'] * 1e3:.2f} / {p90['over HTTP'] * 1e3:.2f} ms"
        )
    return agree


if __name__ == "__main__":
    main()
