"""Which requests met their SLO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.metrics.definitions import PER_REQUEST, BoolArray, is_completed
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
    num_met: int
    required_fraction: float

    @property
    def fraction(self) -> float | None:
        """Share of the requests issued that kept it; None without requests."""
        return self.num_met / self.num_issued if self.num_issued else None

    @property
    def is_met(self) -> bool:
        return self.fraction is not None and self.fraction >= self.required_fraction

    @property
    def shortfall(self) -> float:
        """Required - achieved share: at most 0 where the limit holds. 1 where no request was issued."""
        return 1.0 if self.fraction is None else self.required_fraction - self.fraction


def meets_limit(table: RequestTable, limit: SloLimit, values: FloatArray | None = None) -> BoolArray:
    """[n] completed within the limit. Fewer than two tokens meet a TPOT limit vacuously; failures meet nothing."""
    figures = PER_REQUEST[limit.metric](table) if values is None else values
    within = figures <= limit.limit_s
    if limit.metric == "tpot_s":
        within |= table.num_output_tokens < 2
    return np.asarray(within & is_completed(table))


def good_requests(table: RequestTable, policy: SloPolicy) -> BoolArray:
    """[n] completed within every limit of the request's class; a percentile limit counts by its value."""
    good = is_completed(table)
    values = {metric: PER_REQUEST[metric](table) for metric in ("ttft_s", "tpot_s", "e2el_s")}
    for number, name in enumerate(table.class_names):
        slo = policy.of_class(name)
        for limit in slo.limits if slo is not None else ():
            good &= meets_limit(table, limit, values[limit.metric]) | (table.class_index != number)
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
        for limit in slo.limits:
            results.append(
                LimitResult(
                    limit=limit,
                    num_issued=int(np.count_nonzero(issued)),
                    num_met=int(np.count_nonzero(meets_limit(table, limit) & issued)),
                    required_fraction=limit.required_fraction(slo.attainment_target),
                )
            )
    return results
