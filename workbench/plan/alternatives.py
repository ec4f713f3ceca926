"""Other hardware, precision, caching and routing beside a plan: quick estimates on the first requests of its load."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from engine.catalog import find_gpu
from engine.errors import ConfigError
from workbench.capacity.cost import cost_of
from workbench.metrics.summary import summarize
from workbench.plan.instance import CapacityProber, p95s, policy_of
from workbench.plan.replicas import guess_of
from workbench.records.figures import Figure, speed_error
from workbench.scenario.fleet import PoolSpec
from workbench.scenario.schema import Scenario
from workbench.scenario.target import SimulatedTarget
from workbench.services.targets import build_target
from workbench.workload.rate import at_rate
from workbench.workload.records import Workload

_GPUS = ("h100-80g-sxm", "a100-80g-sxm", "l40s-48g", "a100-40g-sxm")
_LONG_PERCENT = 90
"""Prompts over this percentile of length go to the pool for long ones."""
_LINK_GB_PER_S = 25.0
"""Between prefill and decode pools: one port of 200 Gbit/s for each replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One change to the plan."""

    name: str
    target: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, scenario: Scenario) -> Scenario:
        """The scenario with the change. Raises `ConfigError` for one that the target cannot have."""
        target = SimulatedTarget.model_validate(scenario.target.model_dump() | dict(self.target))
        return scenario.model_copy(update={"target": target, "engine": {**scenario.engine, **self.engine}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One instance, quickly."""

    rate_per_s: float | None
    """None: no rate holds, or it does not start."""
    reason: str | None = None
    profile: Mapping[str, Any] = field(default_factory=dict)
    latency: Mapping[str, float] = field(default_factory=dict)
    """P95s with the load shared by as many instances as it takes."""


def variations(scenario: Scenario) -> Iterator[Variation]:
    """What is worth a look beside this scenario's instance."""
    target = scenario.target
    assert isinstance(target, SimulatedTarget)
    own = find_gpu(str(target.gpu)).id
    if target.quantization is None:
        yield Variation(name="fp8 weights", target={"quantization": "fp8"})
    for gpu in _GPUS:
        if gpu != own:
            yield Variation(name=f"on {gpu}", target={"gpu": gpu, "profile": None})
    yield Variation(
        name=f"tensor parallel {target.tensor_parallel_size * 2}",
        target={"tensor_parallel_size": target.tensor_parallel_size * 2},
    )
    if target.kv_cache_dtype is None:
        yield Variation(name="fp8 KV cache", target={"kv_cache_dtype": "fp8"})
    caches = scenario.engine.get("enable_prefix_caching", True)
    yield Variation(name=f"prefix caching {'off' if caches else 'on'}", engine={"enable_prefix_caching": not caches})


def estimate(scenario: Scenario, workload: Workload, start_per_s: float, rate_per_s: float) -> Estimate:
    """The sustainable rate of one instance on a short workload; `rate_per_s` is the fleet's."""
    try:
        target = build_target(scenario, {})
    except ConfigError as error:
        return Estimate(rate_per_s=None, reason=f"does not start: {error}")
    prober = CapacityProber(target=target, workload=workload, policy=policy_of(scenario))
    passed = prober.bracket(start_per_s).passed
    if passed is None:
        return Estimate(rate_per_s=None, reason="a single request misses the limits")
    record = target.run(at_rate(workload, rate_per_s / guess_of(rate_per_s, passed)))
    latency = p95s(summarize(record, prober.policy))
    return Estimate(rate_per_s=passed, profile=record.engine["profile"], latency=latency)


def fleet_latency(scenario: Scenario, workload: Workload, rate_per_s: float) -> dict[str, float]:
    """P95s of a fleet on a short workload."""
    prober = CapacityProber(target=build_target(scenario, {}), workload=workload, policy=policy_of(scenario))
    record = prober.target.run(at_rate(workload, rate_per_s))
    return p95s(summarize(record, prober.policy))


class Comparison:
    """Estimates in a process of their own, beside the plan's other work."""

    def __init__(
        self, scenario: Scenario, workload: Workload, start_per_s: float, rate_per_s: float, mean_tokens: float
    ) -> None:
        self._scenario, self._workload, self._rate = scenario, workload, rate_per_s
        self._mean_tokens = mean_tokens
        self._pool = ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn"))
        self._base = self._pool.submit(estimate, scenario, workload, start_per_s, rate_per_s)
        self._found: list[tuple[Variation, Future[Estimate]]] = []
        for each in variations(scenario):
            try:
                changed = each.applied(scenario)
            except (ConfigError, ValueError):
                continue
            self._found.append((each, self._pool.submit(estimate, changed, workload, start_per_s, rate_per_s)))

    def rows(self, replicas: int, base: Figure, prices: Mapping[str, float], until: float) -> list[dict[str, Any]]:
        """One row per alternative that was ready at `until` (of `time.monotonic`)."""
        target = self._scenario.target
        assert isinstance(target, SimulatedTarget)
        fleets = [
            (each, self._submit_fleet(each))
            for each in _routings(target, replicas, at_rate(self._workload, self._rate))
        ]
        own = self._ready(self._base, until)
        shown = partial(self._row, own=own, base=base, prices=prices, planned=replicas)
        rows = [shown(Variation(name="as planned"), own)]
        rows += [shown(each, self._ready(future, until)) for each, future in self._found]
        mark_pareto(rows)
        for each, latency in fleets:
            rows.append(self._fleet_row(each, self._ready(latency, until)))
        return rows

    def close(self) -> None:
        """What runs is finished in the background; what waits is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit_fleet(self, each: Variation) -> Future[dict[str, float]]:
        return self._pool.submit(fleet_latency, each.applied(self._scenario), self._workload, self._rate)

    @staticmethod
    def _ready(future: Future[Any], until: float) -> Any:
        try:
            return future.result(timeout=max(0.0, until - time.monotonic()))
        except (TimeoutError, BrokenProcessPool):
            return None

    def _row(
        self,
        each: Variation,
        found: Estimate | None,
        *,
        own: Estimate | None,
        base: Figure,
        prices: Mapping[str, float],
        planned: int,
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"name": each.name, "changes": {**each.target, **each.engine}}
        if found is None or own is None or own.rate_per_s is None:
            return row | {"source": "not estimated: out of time"}
        if found.rate_per_s is None:
            return row | {"source": f"quick simulation, {found.reason}"}
        error = speed_error(found.profile)
        value = base.value * found.rate_per_s / own.rate_per_s
        source = f"quick simulation of {len(self._workload)} requests, relative to the plan's instance ({error.source})"
        rate = Figure(value=value, low=value / (1 + error.share), high=value * (1 + error.share), source=source)
        replicas = guess_of(self._rate, value)
        if replicas > 1:  # a fleet may take more or fewer than division says: as the planned one does
            replicas = max(1, round(replicas * planned / guess_of(self._rate, base.value)))
        target = each.applied(self._scenario).target
        assert isinstance(target, SimulatedTarget)
        num_gpus = replicas * target.tensor_parallel_size
        cost = cost_of(find_gpu(str(target.gpu)), num_gpus, self._rate * self._mean_tokens, prices)
        return row | {
            "sustainable_rate_per_s": rate.to_dict(),
            "replicas": replicas,
            "num_gpus": num_gpus,
            "usd_per_hour": cost["usd_per_hour"],
            "usd_per_million_tokens": cost["usd_per_million_tokens"],
            "latency": dict(found.latency),
            "source": source,
        }

    def _fleet_row(self, each: Variation, latency: dict[str, float] | None) -> dict[str, Any]:
        target = each.applied(self._scenario).target
        assert isinstance(target, SimulatedTarget)
        row: dict[str, Any] = {"name": each.name, "changes": dict(each.target), "replicas": target.num_replicas}
        if latency is None:
            return row | {"source": "not estimated: out of time"}
        source = f"quick simulation of {len(self._workload)} requests at {self._rate:g}/s"
        return row | {"latency": latency, "source": source}


def mark_pareto(rows: list[dict[str, Any]]) -> None:
    """Set `is_pareto` on rows with cost and latency: no other is both cheaper and faster (P95 of E2EL)."""
    points = [
        (row, row["usd_per_hour"], row["latency"].get("e2el_s.p95"))
        for row in rows
        if row.get("usd_per_hour") is not None and row["latency"].get("e2el_s.p95") is not None
    ]
    for row, cost, latency in points:
        row["is_pareto"] = not any(a <= cost and b <= latency and (a < cost or b < latency) for _, a, b in points)


def _routings(target: SimulatedTarget, replicas: int, workload: Workload) -> Sequence[Variation]:
    if replicas < 2:
        return ()
    found = [Variation(name=f"{replicas} replicas, {target.routing}", target={"replicas": replicas})]
    for name in ("round_robin", "least_loaded", "prefix_hash"):
        if name != target.routing:
            found.append(Variation(name=f"{replicas} replicas, {name}", target={"replicas": replicas, "routing": name}))
    lengths = sorted(workload.num_prompt_tokens.tolist())
    border = lengths[len(lengths) * _LONG_PERCENT // 100]
    pools = (
        PoolSpec(name="short", replicas=replicas - 1, max_input_tokens=border).model_dump(),
        PoolSpec(name="long").model_dump(),
    )
    found.append(Variation(name=f"pools: prompts > {border} apart", target={"replicas": 1, "pools": pools}))
    found += [_split(number, replicas) for number in sorted({1, replicas // 2, replicas - 1})]
    found.append(_loss(replicas, float(workload.arrival_s[len(workload) // 2])))
    return found


def _split(num_prefill: int, replicas: int) -> Variation:
    """Prefill and decode apart, over a link that such machines commonly have."""
    pools = (
        PoolSpec(name="prefill", role="prefill", replicas=num_prefill).model_dump(),
        PoolSpec(name="decode", role="decode", replicas=replicas - num_prefill).model_dump(),
    )
    name = f"{num_prefill} prefill, {replicas - num_prefill} decode"
    return Variation(name=name, target={"replicas": 1, "pools": pools, "link": {"bandwidth_gb_per_s": _LINK_GB_PER_S}})


def _loss(replicas: int, at_s: float) -> Variation:
    """One more than planned, of which one fails and stays away."""
    failure = {"replica": replicas, "at_s": at_s}
    return Variation(name="one more, which fails halfway", target={"replicas": replicas + 1, "failures": [failure]})
