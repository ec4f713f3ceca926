"""Which requests met their SLO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.metrics.definitions import JUDGED, BoolArray, gaps_within, is_completed, itl_s
from workbench.metrics.records import FloatArray, RequestTable
from workbench.scenario.schema import Scenario
from workbench.scenario.slo import Slo, SloLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class SloPolicy:
    """The SLO of each class."""

    default: Slo | None = None
    by_class: Mapping[str, Slo] | None = None
    """Replaces the default for these classes."""

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> SloPolicy:
        """The scenario's SLO, and those its classes replace it by."""
        own = {kind.name: kind.slo for kind in scenario.workload.classes if kind.slo is not None}
        return cls(default=scenario.slo, by_class=own)

    def of_class(self, name: str) -> Slo | None:
        return (self.by_class or {}).get(name, self.default)

    def has_limits(self, names: tuple[str, ...]) -> bool:
        """True if any of the classes has a limit."""
        return any(slo is not None and slo.limits for slo in map(self.of_class, names))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitResult:
    """How one limit was kept by the requests it binds."""

    limit: SloLimit
    num_issued: int
    """Requests; gaps for an `itl` limit, where each request that failed counts as one that missed."""
    num_met: int
    required_fraction: float
    mean_s: float | None = None
    """Of a limit on the mean; None without completed requests."""
    error_s: float = 0.0
    """Standard error of that mean."""
    value_s: float | None = None
    """The statistic that the limit is on; of a per-request limit the percentile that the required share asks for. None
    where too many requests failed to have it."""
    class_names: tuple[str, ...] = ()
    """Classes that it binds."""

    def to_dict(self) -> dict[str, Any]:
        """The limit as it is echoed beside every judgement; JSON types only."""
        return {
            "name": self.limit.name,
            "limit_s": self.limit.limit_s,
            "value_s": self.value_s,
            "share_required": self.required_fraction,
            "share_reached": self.fraction,
            "classes": list(self.class_names),
        }

    @property
    def fraction(self) -> float | None:
        """Share of the requests issued that kept it; None without requests. Of a mean: limit / mean, at most 1."""
        if self.limit.is_mean:
            return None if self.mean_s is None else min(1.0, self.limit.limit_s / max(self.mean_s, 1e-12))
        return self.num_met / self.num_issued if self.num_issued else None

    @property
    def is_met(self) -> bool:
        return self.fraction is not None and self.fraction >= self.required_fraction

    @property
    def shortfall(self) -> float:
        """Required - achieved share: at most 0 where the limit holds. 1 where no request was issued."""
        return 1.0 if self.fraction is None else self.required_fraction - self.fraction


def meets_limit(table: RequestTable, limit: SloLimit, values: FloatArray | None = None) -> BoolArray:
    """[n] completed within the limit. Fewer than two tokens meet a TPOT or ITL limit vacuously; failures meet nothing.

    Of its own gaps a request must keep an `itl` limit in the share that the limit asks of all gaps. A limit on a mean
    binds no single request.
    """
    done = is_completed(table)
    if limit.is_mean:
        return done
    if limit.metric == "itl_s":
        within, gaps = gaps_within(table, limit.limit_s)
        share = 1.0 if limit.percent is None else limit.percent / 100.0
        return np.asarray(done & (within >= share * gaps - 1e-9))
    figures = JUDGED[limit.metric](table) if values is None else values
    met = figures <= limit.limit_s
    if limit.metric == "tpot_s":
        met |= table.num_output_tokens < 2
    return np.asarray(met & done)


def good_requests(table: RequestTable, policy: SloPolicy) -> BoolArray:
    """[n] completed within every limit of the request's class; a percentile limit counts by its value."""
    good = is_completed(table)
    values: dict[str, FloatArray] = {}
    for number, name in enumerate(table.class_names):
        slo = policy.of_class(name)
        for limit in slo.limits if slo is not None else ():
            if limit.metric in JUDGED and limit.metric not in values:
                values[limit.metric] = JUDGED[limit.metric](table)
            good &= meets_limit(table, limit, values.get(limit.metric)) | (table.class_index != number)
    return good


def slo_groups(class_names: tuple[str, ...], policy: SloPolicy) -> list[tuple[Slo, list[int]]]:
    """Each SLO with the indices of the classes that it binds."""
    groups: list[tuple[Slo, list[int]]] = []
    for number, name in enumerate(class_names):
        slo = policy.of_class(name)
        if slo is None:
            continue
        for known, numbers in groups:
            if known is slo:
                numbers.append(number)
                break
        else:
            groups.append((slo, [number]))
    return groups


def limit_results(table: RequestTable, policy: SloPolicy, rows: BoolArray) -> list[LimitResult]:
    """One result per SLO and limit, over the requests issued in `rows`; classes under one SLO are judged together."""
    results = []
    for slo, numbers in slo_groups(table.class_names, policy):
        issued = rows & np.isin(table.class_index, numbers)
        names = tuple(table.class_names[number] for number in numbers)
        results += [
            replace(_result(table, limit, issued, slo.attainment_target), class_names=names) for limit in slo.limits
        ]
    return results


def _result(table: RequestTable, limit: SloLimit, issued: BoolArray, attainment_target: float) -> LimitResult:
    required = limit.required_fraction(attainment_target)
    if limit.is_mean:
        values = _values(table, limit.metric, issued & is_completed(table))
        return LimitResult(
            limit=limit,
            num_issued=len(values),
            num_met=int(np.count_nonzero(values <= limit.limit_s)),
            required_fraction=required,
            mean_s=float(values.mean()) if len(values) else None,
            value_s=float(values.mean()) if len(values) else None,
            error_s=float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("inf"),
        )
    if limit.metric == "itl_s":
        done = issued & is_completed(table)
        within, gaps = gaps_within(table, limit.limit_s)
        num_lost = int(np.count_nonzero(issued & ~done))
        num_issued, num_met = int(gaps[done].sum()) + num_lost, int(within[done].sum())
    else:
        num_issued = int(np.count_nonzero(issued))
        num_met = int(np.count_nonzero(meets_limit(table, limit) & issued))
    return LimitResult(
        limit=limit,
        num_issued=num_issued,
        num_met=num_met,
        required_fraction=required,
        value_s=_statistic(table, limit.metric, issued, required),
    )


def _statistic(table: RequestTable, metric: str, issued: BoolArray, share: float) -> float | None:
    """The latency that `share` of the requests issued keep. What did not complete takes for ever; a request without the
    figure (the time per token of one token) is left out."""
    done = issued & is_completed(table)
    values = _values(table, metric, done)
    lost = np.full(int(np.count_nonzero(issued & ~done)), np.inf)
    if not len(values):
        return None
    with np.errstate(invalid="ignore"):  # between a number and infinity
        value = float(np.percentile(np.concatenate([values, lost]), 100 * share))
    return value if np.isfinite(value) else None


def _values(table: RequestTable, metric: str, rows: BoolArray) -> FloatArray:
    """Finite values of a figure: one per request, or per gap."""
    values = itl_s(table, rows) if metric == "itl_s" else JUDGED[metric](table)[rows]
    return np.asarray(values[np.isfinite(values)], dtype=np.float64)
