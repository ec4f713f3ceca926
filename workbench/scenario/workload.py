"""Which requests, when."""

from __future__ import annotations

from pydantic import model_validator

from workbench.scenario.arrivals import (
    ArrivalSpec,
    ClosedLoop,
    OverLong,
    TraceArrivals,
    is_endless,
    needs_count,
    rate_refusal,
)
from workbench.scenario.base import Count, Duration, Spec, problem
from workbench.scenario.classes import RequestClass


class WorkloadSpec(Spec):
    """Which requests, when."""

    num_requests: Count | None = None
    """Number of arrivals from the common process; for a trace the most rows to replay. A conversation is one arrival
    and several requests."""
    duration: Duration | None = None
    """Stop issuing after this long."""
    arrivals: ArrivalSpec | None = None
    """The process that all classes share; null only where every class has its own."""
    max_concurrency: Count | None = None
    """The client holds requests back while this many are in flight; waiting still counts as latency."""
    over_long: OverLong | None = None
    """Requests over the model's window: `fail`, `drop` or `clip` (shorten the prompt). Default: `fail`, for a trace
    `drop`; what was dropped or clipped is counted and printed."""
    classes: tuple[RequestClass, ...] = ()
    """The mix; may be empty for a trace, whose own lengths are used then."""

    @property
    def shared_classes(self) -> tuple[RequestClass, ...]:
        """Those that take their share of the common process."""
        return tuple(kind for kind in self.classes if kind.arrivals is None)

    @property
    def num_common(self) -> int | None:
        """Arrivals of the common process, where the scenario says."""
        counts = [kind.count for kind in self.shared_classes]
        return sum(count or 0 for count in counts) if counts and counts[0] is not None else self.num_requests

    @property
    def all_arrivals(self) -> tuple[ArrivalSpec, ...]:
        """The common process and those of the classes."""
        return tuple(each for each in (self.arrivals, *(kind.arrivals for kind in self.classes)) if each is not None)

    @property
    def rate_refusal(self) -> str | None:
        """Why the load cannot be offered at another rate and held there; None where it can."""
        refusals = (rate_refusal(arrivals) for arrivals in self.all_arrivals)
        return next(filter(None, refusals), None)

    @model_validator(mode="after")
    def _check(self) -> WorkloadSpec:
        shared, arrivals = self.shared_classes, self.arrivals
        if arrivals is None and (shared or not self.classes):
            raise problem("arrivals", "is missing")
        self._check_classes()
        self._check_own_arrivals()
        if arrivals is None:
            return self
        if self.classes and not shared:
            raise problem("arrivals", "is used by no class: each has its own. Remove it")
        counted = bool(shared) and shared[0].count is not None
        if counted and self.num_requests not in (None, sum(kind.count or 0 for kind in shared)):
            raise problem("num_requests", "must equal the sum of the classes' counts, or be left out")
        if counted and (self.duration is not None or isinstance(arrivals, TraceArrivals)):
            raise problem("classes", "must have weights instead of counts with duration or a trace")
        if needs_count(arrivals) and self.num_requests is None and not counted:
            raise problem("num_requests", f"is missing: arrivals {arrivals.kind} does not end by itself")
        if needs_count(arrivals) and self.duration is not None:
            raise problem("duration", f"does not go with arrivals {arrivals.kind}. Use num_requests")
        if is_endless(arrivals) and self.num_requests is None and self.duration is None and not counted:
            raise problem("num_requests", "is missing: give num_requests or duration")
        return self

    def _check_own_arrivals(self) -> None:
        closed = isinstance(self.arrivals, ClosedLoop)
        for index, kind in enumerate(self.classes):
            if closed and (kind.arrivals is not None or kind.conversation is not None):
                what = "arrivals" if kind.arrivals is not None else "conversation"
                raise problem(f"classes.{index}.{what}", "does not go with closed_loop, whose users wait for answers")
            if is_endless(kind.arrivals) and kind.count is None and self.duration is None:
                raise problem(f"classes.{index}.count", "is missing: give it, or workload.duration")

    def _check_classes(self) -> None:
        if not self.classes and not isinstance(self.arrivals, TraceArrivals):
            raise problem("classes", "must name at least one class (only a trace has lengths of its own)")
        seen: set[str] = set()
        for index, kind in enumerate(self.classes):
            if kind.name in seen:
                raise problem(f"classes.{index}.name", "is used twice. Names must differ")
            seen.add(kind.name)
            if kind.count is not None and kind.weight is not None:
                raise problem(f"classes.{index}.count", "excludes weight. Keep one of them")
        shared = self.shared_classes
        if any(kind.count is not None for kind in shared):
            for index, kind in enumerate(self.classes):
                if kind.count is None and kind.arrivals is None:
                    raise problem(f"classes.{index}.count", "is missing: other classes have a count")
        elif shared and not sum(1.0 if kind.weight is None else kind.weight for kind in shared) > 0:
            raise problem("classes", "must have weights that do not sum to 0")
