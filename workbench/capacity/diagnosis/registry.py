"""The rules, and the order in which findings are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from workbench.capacity.diagnosis.evidence import Evidence, Limits
from workbench.capacity.diagnosis.finding import Finding

Rule: TypeAlias = Callable[[Evidence], Finding | None]
_RULES: dict[str, Rule] = {}
_UNKNOWN = object()


def rule(function: Rule) -> Rule:
    """Register a rule under its function's name; a rule is pure and silent (None) where it does not apply."""
    _RULES[function.__name__] = function
    return function


def list_rules() -> tuple[str, ...]:
    return tuple(_RULES)


def apply_rules(evidence: Evidence, rules: Iterable[str] | None = None) -> tuple[Finding, ...]:
    """All findings, most severe first; equal severities in order of registration. Changes in force are left out."""
    found = [_RULES[name](evidence) for name in (rules if rules is not None else _RULES)]
    told = [_without_what_is_in_force(item, evidence.limits) for item in found if item is not None]
    return tuple(sorted(told, key=lambda item: -item.severity))


def _without_what_is_in_force(finding: Finding, limits: Limits) -> Finding:
    changes = [each for each in finding.changes if each.value != getattr(limits, each.parameter, _UNKNOWN)]
    return replace(finding, changes=tuple(changes))
