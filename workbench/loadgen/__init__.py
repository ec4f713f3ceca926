"""Sends a workload to a target and records what happened."""

from workbench.loadgen.driver import Core, drive
from workbench.loadgen.errors import RunFailed
from workbench.loadgen.target import Progress, ProgressCallback, Target

__all__ = ["Core", "Progress", "ProgressCallback", "RunFailed", "Target", "drive"]
