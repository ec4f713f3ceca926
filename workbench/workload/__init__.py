"""Spec + seed -> timed requests."""

from workbench.workload.generate import generate_workload
from workbench.workload.records import ClosedLoopPacing, ModelLimits, Workload, WorkloadSummary

__all__ = ["ClosedLoopPacing", "ModelLimits", "Workload", "WorkloadSummary", "generate_workload"]
