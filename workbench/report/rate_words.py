"""What is known of the rates between the highest shown to hold and the lowest shown not to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.report.quantities import shown

RATE = "sustainable_rate_per_s"
COARSE = "at least this (coarse: cannot win)"
"""How a trial is marked whose rate was not narrowed down."""
_NEXT = 1.03
"""Ratio below which two rungs of the ladder (2 % apart) are neighbours."""


def gap_in_words(rate: Mapping[str, Any]) -> str:
    """Of the object `rate` of a trial: `passed`, `failed`, `is_coarse`, `probes`."""
    passed, failed = rate.get("passed"), rate.get("failed")
    open_rates = unresolved_rates(rate)
    if open_rates:
        return f"unresolved at {', '.join(shown(RATE, value) for value in open_rates)}"
    if rate.get("is_coarse"):
        return "not tried: it could not beat the best so far (coarse)"
    if failed is None:
        return "no rate was shown not to hold"
    if passed is None:
        return "no lower rate was shown to hold"
    return "nothing: neighbouring rates" if failed <= passed * _NEXT else "not tried"


def unresolved_rates(rate: Mapping[str, Any]) -> list[float]:
    """Between the two ends, ascending: tried with all the requests that are allowed, and still undecided."""
    passed, failed = rate.get("passed") or 0.0, rate.get("failed")
    last = {probe["rate_per_s"]: probe.get("proof") for probe in rate.get("probes") or () if "rate_per_s" in probe}
    return sorted(
        value
        for value, proof in last.items()
        if proof == "unresolved" and value > passed and (failed is None or value < failed)
    )
