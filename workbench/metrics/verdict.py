"""May the figures of a run be believed?

VALID: yes. SUSPECT: with the stated reasons in mind. INVALID: no; such a run never scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from workbench.metrics.definitions import client_lag_s, token_counts
from workbench.metrics.records import Outcome, RunRecord
from workbench.metrics.selfchecks import find_violations
from workbench.metrics.statistics import min_samples
from workbench.metrics.steady import find_trend
from workbench.metrics.summary import RunSummary, count_outcomes


class Status(Enum):
    VALID = "VALID"
    SUSPECT = "SUSPECT"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One doubt."""

    code: str
    """For programs: `client_lag`, `all_failed`, ..."""
    status: Status
    message: str
    """For people: what was seen, what it means, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The worst of the reasons."""

    status: Status
    reasons: tuple[Reason, ...] = ()

    @property
    def messages(self) -> list[str]:
        return [reason.message for reason in self.reasons]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """What the run was meant to be, and the limits of belief."""

    statistics: Sequence[str] = ()
    """Latency statistics that something is decided by, for example the objective `ttft_s.p99`."""
    declares_sharing: bool = False
    """The workload shares prefixes on purpose."""
    has_concurrency_cap: bool = False
    """The scenario caps concurrency, so that requests held back by the client are expected."""
    is_steady: bool = False
    """The load is the same from beginning to end and lasts long enough to tell: a trend is the server's."""
    prefers_low_latency: bool = False
    """A latency decides alone: whoever turns requests away on purpose would look better by it."""
    max_lag_fraction: float = 0.05
    """Client lag (p99) allowed, as a fraction of the tightest SLO limit, or of the TTFT p50 without an SLO."""
    min_lag_limit_s: float = 0.005
    """Client lag below this is never held against a run: it is the noise of timers."""
    max_hit_rate: float = 0.05
    """Prefix-cache hits allowed where no sharing was declared (short blocks of small vocabularies do collide)."""


_MOST_FAILED = 0.5
"""Share of the requests from which on those that completed say nothing about the load."""


def judge(record: RunRecord, summary: RunSummary, expectations: Expectations | None = None) -> Verdict:
    """The verdict with every reason, worst first."""
    expected = expectations if expectations is not None else Expectations()
    if len(record.requests) == 0 or summary.overall.num_requests == 0:
        return Verdict(
            status=Status.INVALID,
            reasons=(
                Reason(
                    code="no_requests",
                    status=Status.INVALID,
                    message="No request was issued in the measurement window. Lengthen the run or shorten warm_up",
                ),
            ),
        )
    reasons = [
        *_outcomes(record, summary, expected),
        *_client_lag(record, summary, expected),
        *_clock(record),
        *_self_checks(record),
        *_outside_profile(record),
        *_trend(record, expected),
        *_prefix_hits(record, expected),
        *_too_few(summary, expected),
    ]
    order = (Status.INVALID, Status.SUSPECT)
    reasons.sort(key=lambda reason: order.index(reason.status))
    return Verdict(status=reasons[0].status if reasons else Status.VALID, reasons=tuple(reasons))


def _outcomes(record: RunRecord, summary: RunSummary, expected: Expectations) -> Iterator[Reason]:
    counts = count_outcomes(record)
    total = len(record.requests)
    failed = counts[Outcome.FAILED] + counts[Outcome.REJECTED]
    first_error = next(iter(record.requests.errors.values()), "no message")
    if summary.overall.num_completed == 0:
        yield Reason(
            code="all_failed",
            status=Status.INVALID,
            message=f"None of {total} requests completed ({failed} failed, {counts[Outcome.UNFINISHED]} unfinished). "
            f"First error: {first_error}",
        )
        return
    # What the scenario itself asks for (limits at the door, failures of replicas) is a result, not a doubt.
    by_design = 0 if record.fleet is None else int(record.fleet["num_by_design"])
    if failed > (0 if expected.prefers_low_latency else by_design):
        is_most = failed - by_design > _MOST_FAILED * total
        yield Reason(
            code="failures",
            status=Status.INVALID if is_most else Status.SUSPECT,
            message=f"{failed} of {total} requests failed or were refused; latencies leave them out, attainment counts "
            f"them as missed. First error: {first_error}",
        )
    if counts[Outcome.UNFINISHED]:
        yield Reason(
            code="unfinished",
            status=Status.SUSPECT,
            message=f"{counts[Outcome.UNFINISHED]} of {total} requests were still open at the end: the load was more "
            "than could be served, so latencies are too low. Lower the rate or lengthen the run",
        )


def _client_lag(record: RunRecord, summary: RunSummary, expected: Expectations) -> Iterator[Reason]:
    lag = client_lag_s(record.requests)
    lag = lag[np.isfinite(lag)]
    if len(lag) == 0:
        return
    p99 = float(np.percentile(lag, 99))
    limits = [limit.limit.limit_s for limit in summary.limits if limit.limit.metric in ("ttft_s", "e2el_s")]
    reference = min(limits, default=summary.overall.ttft_s.p50 or 0.0)
    allowed = max(expected.max_lag_fraction * reference, expected.min_lag_limit_s)
    if p99 <= allowed:
        return
    if expected.has_concurrency_cap:
        yield Reason(
            code="client_capped",
            status=Status.SUSPECT,
            message=f"The concurrency cap held requests back: client lag p99 {p99 * 1e3:.1f} ms. Latencies count from "
            "the intended arrival and include it",
        )
    else:
        yield Reason(
            code="client_lag",
            status=Status.INVALID,
            message=f"The load generator was late: client lag p99 {p99 * 1e3:.1f} ms, allowed {allowed * 1e3:.1f} ms. "
            "The client, not the server, was the bottleneck. Lower the rate or give the client more CPU",
        )


def _clock(record: RunRecord) -> Iterator[Reason]:
    table = record.requests
    counts = token_counts(table)
    faults = []
    if (table.sent_s < table.arrival_s - 1e-9).any():
        faults.append("requests sent before their arrival")
    if len(table.token_times_s):
        gaps = np.diff(table.token_times_s)
        starts = table.token_offsets[:-1][counts > 0]
        gaps[starts[starts > 0] - 1] = 0.0
        if (gaps < -1e-9).any():
            faults.append("token times that run backwards")
        first = table.token_times_s[np.clip(table.token_offsets[:-1], 0, len(table.token_times_s) - 1)]
        if ((first < table.sent_s - 1e-9) & (counts > 0)).any():
            faults.append("tokens before their request was sent")
        if not np.isfinite(table.token_times_s).all():
            faults.append("token times that are no numbers")
    if faults:
        yield Reason(
            code="clock",
            status=Status.INVALID,
            message=f"The clock went wrong: {', '.join(faults)}. Times must come from one monotonic clock",
        )


def _self_checks(record: RunRecord) -> Iterator[Reason]:
    """On a virtual clock the laws of queues hold exactly; where they do not, no figure of the run can be believed."""
    if record.clock != "virtual":
        return
    for violation in find_violations(record):
        message = f"{violation}. This is a fault of the simulation: please report it with the scenario"
        yield Reason(code="self_check", status=Status.INVALID, message=message)


def _outside_profile(record: RunRecord) -> Iterator[Reason]:
    """Of a prediction: what the calibration behind it had not seen."""
    profile = record.engine.get("profile")
    if not isinstance(profile, Mapping) or not profile.get("outside"):
        return
    yield Reason(
        code="outside_profile",
        status=Status.SUSPECT,
        message=f"Outside what profile {profile.get('name')} was calibrated for: {'; '.join(profile['outside'])}. Its "
        "error is not known there. Calibrate for this scenario",
    )


def _trend(record: RunRecord, expected: Expectations) -> Iterator[Reason]:
    trend = find_trend(record) if expected.is_steady else None
    if trend is not None:
        yield Reason(
            code="not_stationary",
            status=Status.SUSPECT,
            message=f"The run has no steady state ({trend}): the load is more than the server carries, or the run too "
            "short. Figures would grow with its length. Lower the rate or lengthen the run",
        )


def _prefix_hits(record: RunRecord, expected: Expectations) -> Iterator[Reason]:
    if expected.declares_sharing or record.prefix_queried_tokens == 0:
        return
    rate = record.prefix_hit_tokens / record.prefix_queried_tokens
    if rate > expected.max_hit_rate:
        yield Reason(
            code="undeclared_prefix_hits",
            status=Status.SUSPECT,
            message=f"{rate:.0%} of the prompt tokens were found in the prefix cache, though the scenario declares no "
            "shared prefixes: did the same prompts run before? Use a fresh seed or reset the cache",
        )


def _too_few(summary: RunSummary, expected: Expectations) -> Iterator[Reason]:
    """Only where a decision rests on the statistic: the objective, or a percentile limit of the SLO."""
    for name in expected.statistics:
        metric, _, statistic = name.partition(".p")
        if not statistic.replace(".", "", 1).isdigit() or not hasattr(summary.overall, metric):
            continue
        count = getattr(summary.overall, metric).num_samples
        yield from _few(name, float(statistic), count)
    for result in summary.limits:
        if result.limit.percent is not None and result.limit.is_percentile:
            yield from _few(result.limit.name, result.limit.percent, result.num_issued)


def _few(name: str, percent: float, count: int) -> Iterator[Reason]:
    needed = min_samples(percent)
    if count < needed:
        yield Reason(
            code="too_few_samples",
            status=Status.SUSPECT,
            message=f"{name} rests on {count} samples; p{percent:g} needs {needed}. Lengthen the run",
        )
