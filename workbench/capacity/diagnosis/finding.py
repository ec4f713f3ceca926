"""What a diagnosis says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_COMPUTED = ("full_length_concurrency", "headroom_share")
"""Follow from the sizes alone."""
_NAMES = {
    "ttft_s.p95": "TTFT p95 (s)",
    "short_ttft_s.p95": "TTFT p95 of short prompts (s)",
    "tpot_s.p95": "TPOT p95 (s)",
    "client_lag_s.p99": "client lag p99 (s)",
    "output_tokens_per_s": "output tokens/s",
    "num_preemptions": "preemptions",
    "num_not_served": "requests not served",
    "prefix_hit_rate": "prefix hit rate",
    "full_length_concurrency": "full-length requests that fit",
    "headroom_share": "share of the GPU left free",
    "unused_seats": "seats never used",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Says what a replay with the change shows."""

    metric: str
    """The symptom as a figure: `ttft_s.p95`, `output_tokens_per_s`, ..."""
    before: float
    after: float
    is_better: bool
    """The symptom improves, and the SLO attainment does not get worse."""
    slo_attainment: tuple[float, float] | None = None
    """Before and after; None without an SLO."""

    def __str__(self) -> str:
        words = f"{_NAMES.get(self.metric, self.metric)} {_short(self.before)} -> {_short(self.after)}"
        if self.metric == "output_tokens_per_s" and self.before > 0:
            words += f" ({self.after / self.before:.2f} times)"
        if self.slo_attainment is not None:
            before, after = self.slo_attainment
            words += f", SLO attainment {before:.1%} -> {after:.1%}"
        return words


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One parameter and its new value."""

    parameter: str
    value: Any
    """A number or a short text."""
    note: str = ""
    settings: tuple[str, ...] = ()
    """The change as `--set` takes it; empty where it is none of the scenario's."""
    effect: Effect | None = None
    """None: not tried."""

    def __str__(self) -> str:
        tail = f" ({self.note})" if self.note else ""
        how = "computed" if self.effect is not None and self.effect.metric in _COMPUTED else "replayed"
        tried = "not tried" if self.effect is None else f"{how}: {self.effect}"
        return f"{self.parameter} = {self.value}{tail}; {tried}"

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "parameter": self.parameter,
            "value": self.value,
            "note": self.note,
            "set": list(self.settings),
            "tried": self.effect is not None,
            "effect": None if self.effect is None else asdict(self.effect),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A symptom, its cause with the numbers that show it, and what to change."""

    code: str
    severity: float
    """0 to 100; findings are told in this order."""
    symptom: str
    cause: str
    evidence: Mapping[str, Any]
    changes: tuple[Change, ...]
    where: str = ""
    """Of a study: which trial; empty otherwise."""

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "code": self.code,
            "severity": self.severity,
            "symptom": self.symptom,
            "cause": self.cause,
            "evidence": dict(self.evidence),
            "changes": [change.to_dict() for change in self.changes],
            "where": self.where,
        }
