"""Deployment files from facts: one renderer per format. Nothing here reads a study or a plan."""

from workbench.report.export.facts import DeploymentFacts, PoolFacts, RouterFacts
from workbench.report.export.formats import FORMATS, render

__all__ = ["FORMATS", "DeploymentFacts", "PoolFacts", "RouterFacts", "render"]
