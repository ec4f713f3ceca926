"""Recorded requests in the formats people have."""

from workbench.workload.traces.importer import import_requests, import_trace
from workbench.workload.traces.table import ImportReport, RowProblem, TraceTable

__all__ = ["ImportReport", "RowProblem", "TraceTable", "import_requests", "import_trace"]
