"""Predict the embedded engine on this machine: `python benchmarks/bench_calibration.py [--model tiny] [--json]`.

Calibrates on small designed loads, then compares three scenarios (steady, burst, saturated) that were really run with
the same scenarios simulated. Passes of the calibration and runs of the scenarios alternate, so that a slow minute of
the machine hits both. `noise` is how far a repeat of the real run lies from the median of the repeats (median over
them): no prediction can be held to less. Rates follow the machine: 60 % of its saturated request rate when steady, six
times that share of the time in the bursts' on-phases (capacity is exceeded there).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from engine.config import EngineConfig
from engine.models.loader import find_spec
from workbench.loadgen.embedded import EmbeddedTarget
from workbench.loadgen.machine import MachineTarget
from workbench.metrics.summary import Metrics
from workbench.scenario import Scenario
from workbench.services.calibrate import provenance
from workbench.services.calibrate_machine import calibrate_machine
from workbench.services.evaluate import RunResult, measure

METRICS = ("output_tokens_per_s", "tpot_p50_s", "ttft_p50_s", "ttft_p95_s")
LIMITS = {"output_tokens_per_s": 0.04, "tpot_p50_s": 0.04, "ttft_p95_s": 0.10}
"""What the prediction is held to."""


def make_scenario(name: str, model: str, engine: dict[str, Any], arrivals: dict[str, Any], num: int) -> Scenario:
    longest = engine["max_model_len"]
    classes = [
        {
            "name": "chat",
            "input_tokens": {"kind": "lognormal", "median": longest / 16, "sigma": 0.7, "max": longest // 2},
            "output_tokens": {"kind": "uniform", "low": 16, "high": 96},
        }
    ]
    values = {
        "name": name,
        "seed": 11,
        "model": model,
        "engine": engine,
        "workload": {"num_requests": num, "arrivals": arrivals, "classes": classes},
    }
    return Scenario.model_validate(values)


def make_scenarios(model: str, engine: dict[str, Any], rate: float, num: int) -> dict[str, Scenario]:
    """Three ways to load an engine that can serve `rate` requests a second."""
    steady = {"kind": "poisson", "rate": 0.6 * rate}
    on_s = max(20.0 / rate, 0.05)
    burst = {"kind": "on_off", "rate": 1.8 * rate, "on": on_s, "off": 2 * on_s, "off_rate": 0.1 * rate}
    return {
        "steady": make_scenario("steady", model, engine, steady, num),
        "burst": make_scenario("burst", model, engine, burst, num),
        "saturated": saturated(model, engine, num),
    }


def saturated(model: str, engine: dict[str, Any], num: int) -> Scenario:
    users = {"kind": "closed_loop", "concurrency": int(1.5 * engine["max_num_seqs"])}
    return make_scenario("saturated", model, engine, users, num)


def figures(result: RunResult) -> dict[str, float]:
    overall: Metrics = result.summary.overall
    values = {
        "output_tokens_per_s": overall.output_tokens_per_s,
        "tpot_p50_s": overall.tpot_s.p50,
        "ttft_p50_s": overall.ttft_s.p50,
        "ttft_p95_s": overall.ttft_s.p95,
    }
    return {name: float("nan") if value is None else value for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    limit = min(1024, find_spec(args.model).max_runnable_len)
    engine = {"max_model_len": limit, "max_num_seqs": args.max_num_seqs, "max_num_batched_tokens": limit}
    config = EngineConfig.from_dict({"model": args.model, **engine, "num_blocks": 1 + args.max_num_seqs * limit // 32})
    engine["num_blocks"] = config.cache.num_blocks
    scenarios: dict[str, Scenario] = {}
    measured: dict[str, list[dict[str, float]]] = {}

    def run_scenarios(target: EmbeddedTarget) -> None:
        if not scenarios:  # how much the machine can serve, roughly
            result = measure(target, saturated(args.model, engine, max(args.requests // 2, 64)), {})
            rate = result.summary.overall.requests_per_s or 1.0
            scenarios.update(make_scenarios(args.model, engine, rate, args.requests))
        for name, scenario in scenarios.items():
            measured.setdefault(name, []).append(figures(measure(target, scenario, {})))

    profile = calibrate_machine(
        config,
        name="bench",
        provenance=provenance(args.model),
        report=lambda line: print(line, file=sys.stderr) if line.endswith(")") and "load 1 of" in line else None,
        num_repeats=args.repeats,
        after_repeat=run_scenarios,
    )
    simulated = MachineTarget(config, find_spec(args.model), profile)
    rows = []
    for name, scenario in scenarios.items():
        predicted = figures(measure(simulated, scenario, {}))
        for metric in METRICS:
            repeats = np.array([run[metric] for run in measured[name]])
            middle = float(np.median(repeats))
            rows.append(
                {
                    "scenario": name,
                    "metric": metric,
                    "predicted": predicted[metric],
                    "measured": middle,
                    "error": predicted[metric] / middle - 1.0,
                    "noise": float(np.median(np.abs(repeats / middle - 1.0))),
                    "limit": LIMITS.get(metric),
                }
            )
    result = {"model": args.model, "rows": rows, "profile": profile.facts(), "provenance": dict(profile.provenance)}
    if args.json:
        print(json.dumps(result))
        return
    print(f"{args.model}: {profile.error_band}")
    for row in rows:
        held = "" if row["limit"] is None else f"  (limit {row['limit']:.0%})"
        print(
            f"{row['scenario']:10} {row['metric']:20} predicted {row['predicted']:10.4g}  measured "
            f"{row['measured']:10.4g}  error {row['error']:+6.1%}  noise {row['noise']:5.1%}{held}"
        )


if __name__ == "__main__":
    main()
