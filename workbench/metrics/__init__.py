"""Raw records -> definitions -> windows -> summary and verdict. Pure: no I/O, no clock."""

from workbench.metrics.attainment import LimitResult, SloPolicy
from workbench.metrics.records import Outcome, RequestTable, RunRecord, StepTable
from workbench.metrics.summary import Metrics, RunSummary, summarize
from workbench.metrics.uncertainty import Interval, gain_interval, metric_interval
from workbench.metrics.verdict import Expectations, Reason, Status, Verdict, judge
from workbench.metrics.windows import Window, measurement_window

__all__ = [
    "Expectations",
    "Interval",
    "LimitResult",
    "Metrics",
    "Outcome",
    "Reason",
    "RequestTable",
    "RunRecord",
    "RunSummary",
    "SloPolicy",
    "Status",
    "StepTable",
    "Verdict",
    "Window",
    "gain_interval",
    "judge",
    "measurement_window",
    "metric_interval",
    "summarize",
]
