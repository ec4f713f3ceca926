"""Objectives that rest on the sustainable rate: the rate itself, per GPU, and the price of a million tokens at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.catalog import find_gpu
from engine.errors import ConfigError
from workbench.capacity.cost import price_of
from workbench.scenario import Scenario
from workbench.scenario.search import PER_GPU, USD_PER_MILLION
from workbench.scenario.target import SimulatedTarget
from workbench.search.selection import best_trial
from workbench.search.trials import TrialRecord
from workbench.services.targets import split_params, with_device
from workbench.workload.records import Workload


def objective_at(scenario: Scenario, params: Mapping[str, Any], workload: Workload, rate_per_s: float) -> float:
    """Return the scenario's objective for a configuration that sustains a rate.

    Raises `ConfigError` for a price that the catalogue does not have.
    """
    objective = scenario.search.objective if scenario.search is not None else ""
    if objective == PER_GPU:
        return rate_per_s / _num_gpus(scenario, params)
    if objective == USD_PER_MILLION:
        tokens = float((workload.num_prompt_tokens + workload.max_output_tokens).mean())
        return _usd_per_s(scenario, params) / (rate_per_s * tokens) * 1e6
    return rate_per_s


def rate_to_beat(scenario: Scenario, params: Mapping[str, Any], finished: Sequence[TrialRecord]) -> float | None:
    """Return the rate at which a configuration equals the best of the finished trials; None where there is none."""
    search = scenario.search
    best = None if search is None else best_trial(finished, maximize=search.maximize)
    if search is None or best is None or best.outcome.objective is None:
        return None
    value = best.outcome.objective
    if search.objective == PER_GPU:
        return value * _num_gpus(scenario, params)
    if search.objective == USD_PER_MILLION:
        passed = (best.outcome.rate or {}).get("passed")
        best_usd_per_s = _usd_per_s(scenario, best.params)
        return None if not passed else float(passed) * _usd_per_s(scenario, params) / best_usd_per_s
    return value


def _num_gpus(scenario: Scenario, params: Mapping[str, Any]) -> int:
    target = _target(scenario, params)
    return target.tensor_parallel_size * target.num_replicas


def _usd_per_s(scenario: Scenario, params: Mapping[str, Any]) -> float:
    target = _target(scenario, params)
    gpu = find_gpu(str(target.gpu))
    price = price_of(gpu, {})
    if price is None:
        raise ConfigError(f"search.objective: the catalogue has no price for {gpu.id}. Use {PER_GPU}")
    return price.per_hour / 3600.0 * _num_gpus(scenario, params)


def _target(scenario: Scenario, params: Mapping[str, Any]) -> SimulatedTarget:
    assert isinstance(scenario.target, SimulatedTarget)
    device = split_params(params)[0]
    return with_device(scenario.target, device) if device else scenario.target
