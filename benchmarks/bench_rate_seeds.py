"""How far the sustainable rates of one server lie apart, by the seed of the load.

    python benchmarks/bench_rate_seeds.py [--json]

Ten seeds of each load on one simulated GPU; the spread is the highest rate / the lowest - 1.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from workbench.scenario import Scenario, parse_scenario
from workbench.services.rate_trial import run_for_rate

LOADS = {
    "100 requests": (100, {"ttft_p95": "2s", "tpot_p95": "50ms"}),
    "200 requests": (200, {"ttft_p90": "500ms"}),
    "300 requests": (300, {"ttft_p95": "2s", "tpot_p95": "50ms"}),
    "1,000 requests": (1000, {"ttft_p95": "2s", "tpot_p95": "50ms"}),
}
SEEDS = range(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = {name: measure(scenario_of(count, slo)) for name, (count, slo) in LOADS.items()}
    if args.json:
        print(json.dumps(found, indent=2))
        return
    for name, each in found.items():
        print(f"{name}: spread {each['spread']:.1%}, rates {' '.join(f'{rate:.4g}' for rate in each['rates'])}")


def scenario_of(num_requests: int, slo: dict[str, str]) -> Scenario:
    kind = {
        "name": "chat",
        "input_tokens": {"kind": "lognormal", "median": 400, "sigma": 0.8, "max": 4000},
        "output_tokens": {"kind": "lognormal", "median": 150, "sigma": 0.7, "max": 1000},
    }
    document = {
        "name": "seeds",
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "target": {"kind": "simulated", "gpu": "a100-80g-sxm"},
        "engine": {"max_model_len": 8192},
        "workload": {
            "num_requests": num_requests, "arrivals": {"kind": "poisson", "rate": 5}, "classes": [kind]
        },
        "slo": slo,
        "search": {"space": {"max_num_seqs": {"choices": [64, 128]}}},
    }  # fmt: skip
    return parse_scenario(json.dumps(document))


def measure(scenario: Scenario) -> dict[str, Any]:
    brackets = [run_for_rate(scenario, {}, seed=seed).bracket for seed in SEEDS]
    rates = [bracket.passed or 0.0 for bracket in brackets]
    return {
        "spread": max(rates) / min(rates) - 1,
        "rates": rates,
        "intervals": [(bracket.low, bracket.high) for bracket in brackets],
        "num_probes": [len(bracket.probes) for bracket in brackets],
    }


if __name__ == "__main__":
    main()
