"""`workbench plan --check`: the plan's own scenario against what was deployed, figure by figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.errors import ConfigError
from workbench.capacity.diagnosis.metrics_dump import read_metrics_dumps
from workbench.loadgen.endpoint_probe import base_url, open_directly
from workbench.loadgen.target import ProgressCallback
from workbench.metrics.certainty import nothing_completes
from workbench.metrics.saturation import saturation_of
from workbench.plan.task import with_rate
from workbench.records.figures import four_digits, speed_error
from workbench.scenario import Scenario, ScenarioError
from workbench.scenario.loader import parse_scenario
from workbench.scenario.target import EndpointTarget, SimulatedTarget
from workbench.services.evaluate import RunResult, run_scenario
from workbench.store.plans import read_plan

_LATENCIES = ("ttft_s.p50", "ttft_s.p95", "tpot_s.p50", "tpot_s.p95", "e2el_s.p95")
_BLOCKS_SHARE = 0.95
"""A server's own memory profile may find a little less than arithmetic does."""
_METRICS_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckQuestion:
    """The flags, as given."""

    plan: Path
    url: str
    model: str | None = None
    """As the server names it; None: the first that it lists."""
    api_key_env: str | None = None
    replicas: int | None = None
    """Behind the address; the load goes with it. None: as many as the plan says at least."""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFigure:
    """A figure of the plan beside the one that was measured."""

    name: str
    predicted: float | None
    measured: float | None
    holds: bool | None
    """None: it could not be measured, or is shown without being promised."""
    rule: str
    """When it holds."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "predicted": four_digits(self.predicted),
            "measured": four_digits(self.measured),
            "holds": self.holds,
            "rule": self.rule,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck:
    """What the deployed fleet did under the plan's load."""

    rate_per_s: float
    replicas: int
    figures: tuple[CheckedFigure, ...]
    verdict: str
    reasons: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Nothing that was promised failed, in a run that counts."""
        return self.verdict == "VALID" and all(figure.holds is not False for figure in self.figures)

    def to_dict(self) -> dict[str, Any]:
        """The object of `workbench plan --check --json`."""
        return {
            "holds": self.holds,
            "rate_per_s": self.rate_per_s,
            "replicas": self.replicas,
            "figures": [figure.to_dict() for figure in self.figures],
            "verdict": self.verdict,
            "reasons": list(self.reasons),
        }


def check_plan(question: CheckQuestion, on_progress: ProgressCallback | None = None) -> PlanCheck:
    """Simulate the plan's fleet and load the endpoint with the same scenario.

    Raises `ScenarioError` for what is no plan, `ConfigError` for an endpoint that cannot be asked, `RunFailed`.
    """
    document = _read(question.plan)
    scenario = parse_scenario(
        json.dumps(document["scenario"], default=str), source=str(question.plan), overrides=question.overrides
    )
    if not isinstance(scenario.target, SimulatedTarget):
        raise ScenarioError(f"{question.plan}: scenario.target: must be simulated, as `workbench plan` wrote it")
    planned = int(document["replicas"]["minimum"])
    replicas = question.replicas or planned
    rate = float(document["rate_per_s"]) * replicas / planned
    scenario = with_rate(scenario, rate)
    endpoint = _endpoint(question)
    measured = run_scenario(
        scenario.model_copy(update={"target": endpoint}), on_progress=on_progress, stop=nothing_completes
    )
    fleet = scenario.target.model_copy(update={"replicas": replicas})
    predicted = run_scenario(scenario.model_copy(update={"target": fleet}))
    return PlanCheck(
        rate_per_s=rate,
        replicas=replicas,
        figures=tuple(_figures(scenario, document, predicted, measured, endpoint.url)),
        verdict=measured.verdict.status.value,
        reasons=tuple(measured.verdict.messages),
    )


def _endpoint(question: CheckQuestion) -> EndpointTarget:
    try:
        return EndpointTarget(
            kind="endpoint", url=base_url(question.url), model=question.model, api_key_env=question.api_key_env
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--endpoint: {first['loc'][0]}: {first['msg']} (got {first['input']!r})") from None


def _figures(
    scenario: Scenario, document: Mapping[str, Any], predicted: RunResult, measured: RunResult, url: str
) -> Iterator[CheckedFigure]:
    for before, now in zip(predicted.summary.limits, measured.summary.limits, strict=True):
        yield CheckedFigure(
            name=now.limit.name,
            predicted=before.fraction,
            measured=now.fraction,
            holds=now.is_met,
            rule=f"share of requests that keep it, at least {now.required_fraction:g}",
        )
    yield _queue(predicted, measured)
    error = speed_error(predicted.record.engine["profile"])
    ours, theirs = predicted.summary.overall, measured.summary.overall
    for name in _LATENCIES:
        before_s, now_s = ours.value(name), theirs.value(name)
        high = None if before_s is None else before_s * (1.0 + error.share)
        yield CheckedFigure(
            name=name,
            predicted=before_s,
            measured=now_s,
            holds=None if high is None or now_s is None else now_s <= high,
            rule=f"no more than {error.share:.0%} over the prediction ({error.source})",
        )
    for name in ("requests_per_s", "output_tokens_per_s"):
        before_rate, now_rate = ours.value(name), theirs.value(name)
        yield CheckedFigure(
            name=name,
            predicted=before_rate,
            measured=now_rate,
            holds=None if before_rate is None or now_rate is None else now_rate >= 0.95 * before_rate,
            rule="at least 0.95 of the prediction",
        )
    yield _blocks(document, measured, url)


def _queue(predicted: RunResult, measured: RunResult) -> CheckedFigure:
    """Does the fleet keep up: waiting that grows would break every limit in time."""
    before, now = saturation_of(predicted.record.requests), saturation_of(measured.record.requests)
    return CheckedFigure(
        name="queue_growth_per_s",
        predicted=0.0 if before is None else before.inside_per_s,
        measured=0.0 if now is None else now.inside_per_s,
        holds=now is None if measured.summary.overall.num_completed else None,
        rule="queue and TTFT do not grow together",
    )


def _blocks(document: Mapping[str, Any], measured: RunResult, url: str) -> CheckedFigure:
    """KV blocks of one instance, as the server tells them."""
    planned = float(document["kv_budget"]["num_blocks"])
    found = measured.record.engine.get("num_blocks") or _blocks_in_metrics(url)
    return CheckedFigure(
        name="num_blocks",
        predicted=planned,
        measured=None if found is None else float(found),
        holds=None if found is None else found >= _BLOCKS_SHARE * planned,
        rule=f"KV blocks of an instance, at least {_BLOCKS_SHARE:g} of the plan; null where the server does not tell",
    )


def _blocks_in_metrics(url: str) -> int | None:
    """From vLLM's `cache_config_info`; None where there are no metrics, or none that tell."""
    try:
        with open_directly(f"{url}/metrics", timeout_s=_METRICS_S) as answer:
            return read_metrics_dumps([answer.read().decode("utf-8", errors="replace")]).limits.num_blocks
    except (OSError, ValueError):
        return None


def _read(path: Path) -> dict[str, Any]:
    """Raises `ScenarioError` unless it is a plan file, `ConfigError` for figures that no plan has."""
    document = read_plan(path, ("scenario", "replicas", "rate_per_s", "kv_budget"))
    try:
        numbers = (document["replicas"]["minimum"], document["kv_budget"]["num_blocks"], document["rate_per_s"])
        is_usable = all(math.isfinite(number) and number > 0 for number in numbers) and int(numbers[0]) == numbers[0]
    except (KeyError, TypeError, OverflowError):
        is_usable = False
    if not is_usable:
        raise ConfigError(
            f"{path}: replicas.minimum, kv_budget.num_blocks and rate_per_s must be numbers over 0, the replicas "
            "whole, as workbench plan writes them"
        )
    return document
