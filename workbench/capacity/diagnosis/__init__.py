"""`workbench doctor`: rules over one frozen record of evidence. Nothing here reads a file or a clock."""

from workbench.capacity.diagnosis import failures, fleet, memory, prompts, queueing, sizing
from workbench.capacity.diagnosis.evidence import Evidence
from workbench.capacity.diagnosis.finding import Change, Finding
from workbench.capacity.diagnosis.registry import apply_rules, list_rules

RULE_MODULES = (failures, fleet, queueing, memory, prompts, sizing)
"""Imported for their rules."""

__all__ = ["RULE_MODULES", "Change", "Evidence", "Finding", "apply_rules", "list_rules"]
