"""What a diagnosis says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One parameter and its new value."""

    parameter: str
    value: Any
    """A number or a short text."""
    note: str = ""

    def __str__(self) -> str:
        tail = f" ({self.note})" if self.note else ""
        return f"{self.parameter} = {self.value}{tail}"


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
            "changes": [
                {"parameter": change.parameter, "value": change.value, "note": change.note} for change in self.changes
            ],
            "where": self.where,
        }
