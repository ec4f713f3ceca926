"""Service level objectives (GLOSSARY section 1): `ttft: 500ms` per request, `ttft_p95: 2s` for 95 % of the requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.scenario.base import Duration, Share, Spec

SloMetric = Literal["ttft_s", "tpot_s", "e2el_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SloLimit:
    """One limit."""

    name: str
    """As written: `ttft`, `tpot_p95`, ..."""
    metric: SloMetric
    limit_s: float
    percent: float | None
    """Percent of the requests issued that must keep the limit; None: judged by the attainment target."""

    def required_fraction(self, attainment_target: float) -> float:
        """Share of the requests issued that must keep the limit."""
        return attainment_target if self.percent is None else self.percent / 100.0


class Slo(Spec):
    """Limits on latency; absent limits do not bind."""

    ttft: Duration | None = None
    ttft_p50: Duration | None = None
    ttft_p90: Duration | None = None
    ttft_p95: Duration | None = None
    ttft_p99: Duration | None = None
    tpot: Duration | None = None
    tpot_p50: Duration | None = None
    tpot_p90: Duration | None = None
    tpot_p95: Duration | None = None
    tpot_p99: Duration | None = None
    e2el: Duration | None = None
    e2el_p50: Duration | None = None
    e2el_p90: Duration | None = None
    e2el_p95: Duration | None = None
    e2el_p99: Duration | None = None
    attainment_target: Share = 0.99
    """Share of requests that must keep a limit without percentile."""

    @property
    def limits(self) -> tuple[SloLimit, ...]:
        """The limits that are set, in order of declaration."""
        found = []
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name == "attainment_target" or value is None:
                continue
            metric, _, percent = name.partition("_p")
            found.append(
                SloLimit(
                    name=name,
                    metric=f"{metric}_s",  # type: ignore[arg-type]
                    limit_s=value,
                    percent=float(percent) if percent else None,
                )
            )
        return tuple(found)
