"""Service level objectives (GLOSSARY section 1): `ttft: 500ms` per request, `ttft_p95: 2s` for 95 % of the requests.

Any latency may be bound in any statistic: `itl_p99`, `queue_p90`, `ttft_p99.9`, `e2el_max`, `tpot_mean`. An `itl` limit
counts gaps between tokens instead of requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator

from engine.errors import suggest
from workbench.scenario.base import Duration, Share, Spec, problem

METRICS = ("e2el_per_token", "ttft", "tpot", "itl", "e2el", "queue")
_NAME = re.compile(rf"({'|'.join(METRICS)})(?:_(mean|max|p(\d{{1,2}}(?:\.\d{{1,4}})?)))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SloLimit:
    """One limit."""

    name: str
    """As written: `ttft`, `tpot_p95`, ..."""
    metric: str
    """`ttft_s`, `itl_s`, ..."""
    limit_s: float
    percent: float | None
    """Percent of the requests issued (of the gaps for `itl_s`) that must keep the limit; 100 for `_max`; None: judged
    by the attainment target."""
    is_mean: bool = False
    """The mean over the completed requests must keep it; single requests are not judged."""

    def required_fraction(self, attainment_target: float) -> float:
        """Share of the requests issued that must keep the limit; 1 for a mean (see `LimitResult.fraction`)."""
        if self.is_mean:
            return 1.0
        return attainment_target if self.percent is None else self.percent / 100.0

    @property
    def is_percentile(self) -> bool:
        return self.percent is not None and self.percent < 100


class Slo(Spec):
    """Limits on latency; absent limits do not bind.

    Further names are METRIC, METRIC_pNN, METRIC_max and METRIC_mean with METRIC one of ttft, tpot, itl, e2el, queue and
    e2el_per_token.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Duration]

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

    @model_validator(mode="before")
    @classmethod
    def _check_units(cls, values: Any) -> Any:
        """A latency over a minute without a unit was meant in milliseconds."""
        for name, value in values.items() if isinstance(values, dict) else ():
            bare = _bare_number(value)
            if bare is not None and _NAME.fullmatch(name) and bare >= longest_plausible_s(name):
                raise problem(name, f"has no unit (got {value}). Write {bare:g}ms, or {bare:g}s if seconds are meant")
        return values

    @model_serializer(mode="wrap", when_used="json")
    def _with_units(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Long limits are written with their unit, so that they can be read again."""
        return {
            name: f"{value:g}s"
            if isinstance(value, float) and name != "attainment_target" and value >= longest_plausible_s(name)
            else value
            for name, value in handler(self).items()
        }

    @model_validator(mode="after")
    def _check_names(self) -> Slo:
        for name in self.__pydantic_extra__ or {}:
            match = _NAME.fullmatch(name)
            if match is None or (match[3] is not None and not float(match[3]) > 0):
                known = [*type(self).model_fields, *METRICS, *(f"{metric}_p99" for metric in METRICS)]
                raise problem(name, f"unknown key. {_swapped(name) or suggest(name, dict.fromkeys(known))}")
        return self

    @property
    def doubts(self) -> tuple[str, ...]:
        """Limits that hardly bind anything, as questions."""
        return tuple(
            f"slo.{limit.name} is {limit.limit_s:g} s: is that meant? Nobody waits so long"
            for limit in self.limits
            if limit.metric not in ("e2el_s", "queue_s") and limit.limit_s > longest_plausible_s(limit.name)
        )

    @property
    def limits(self) -> tuple[SloLimit, ...]:
        """The limits that are set, in order of declaration."""
        names = [name for name in type(self).model_fields if name != "attainment_target"]
        return tuple(
            _limit(name, value)
            for name in (*names, *(self.__pydantic_extra__ or {}))
            if (value := getattr(self, name)) is not None
        )


def longest_plausible_s(name: str) -> float:
    """Limits from here on are questioned: a minute, or a second for the time per token."""
    return 1.0 if name.startswith(("tpot", "itl", "e2el_per_token")) else 60.0


def _bare_number(value: Any) -> float | None:
    """The number of 2000 and "2000", which name no unit; None for the rest."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _swapped(name: str) -> str | None:
    """`p95_ttft` -> the hint at `ttft_p95`."""
    first, _, rest = name.partition("_")
    turned = f"{rest}_{first}"
    return f"Did you mean {turned!r}?" if _NAME.fullmatch(turned) else None


def _limit(name: str, limit_s: float) -> SloLimit:
    match = _NAME.fullmatch(name)
    assert match is not None
    percent = 100.0 if match[2] == "max" else None if match[3] is None else float(match[3])
    return SloLimit(name=name, metric=f"{match[1]}_s", limit_s=limit_s, percent=percent, is_mean=match[2] == "mean")
