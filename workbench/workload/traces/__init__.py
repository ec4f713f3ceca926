"""Recorded request traces in the formats people have."""

from workbench.workload.traces.importer import import_trace
from workbench.workload.traces.table import ImportReport, RowProblem, TraceTable

__all__ = ["ImportReport", "RowProblem", "TraceTable", "import_trace"]
