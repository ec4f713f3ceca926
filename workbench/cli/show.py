"""A scenario in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from workbench.cli.console import number, out


def render_scenario(described: Mapping[str, Any]) -> None:
    """The scenario with defaults, then what its workload came to."""
    out.print(json.dumps(described["scenario"], indent=2, default=str), markup=False)
    workload = described["workload"]
    out.print(
        f"\nworkload: {workload['num_requests']} requests, rate {number(workload['rate_per_s'])} per s "
        f"(asked {number(workload['asked_rate_per_s'])}), CV of gaps {number(workload['cv'])}",
        markup=False,
    )
    for name, kind in workload["classes"].items():
        lengths = " ".join(
            f"{side}: p50 {number(kind[side]['p50'])}, p95 {number(kind[side]['p95'])}, max {kind[side]['max']};"
            for side in ("input_tokens", "output_tokens")
            if kind[side] is not None
        )
        out.print(f"  {name}: {kind['num_requests']} requests; {lengths}", markup=False)
    out.print(f"fingerprint: {described['fingerprint']}", markup=False)
