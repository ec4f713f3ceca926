"""What stands in front of simulated engines and what happens to them: pools, limits, failures, scaling, a link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from workbench.scenario.base import Count, Duration, DurationOrZero, NonNegative, Positive, Spec, WholeNumber, problem

RoutingName = Literal["random", "round_robin", "least_loaded", "least_kv", "prefix_hash"]
RetryPolicy = Literal["all", "unstarted", "none"]
Interval = Annotated[Duration, Field(ge=0.1)]
Replicas = Annotated[Count, Field(le=1024)]
"""Each is an engine of its own in memory."""


def _name_or_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or (isinstance(value, int) and value < 0):
        raise problem("", "must be a replica's number, counted from 0, or its name, such as replica-1")
    return value


ReplicaId = Annotated[int | str, BeforeValidator(_name_or_number, json_schema_input_type=int | str)]


class Autoscaling(Spec):
    """Replicas follow the queue, as Kubernetes' HorizontalPodAutoscaler does on a metric of the pods.

    Every `interval_s` the number wanted is ceil(waiting requests / waiting_per_replica), within min and max. All that
    are missing are started at once; one is let go when no look within `scale_down_after_s` wanted it, and the next no
    sooner than that again.
    """

    min_replicas: Replicas = 1
    max_replicas: Replicas
    waiting_per_replica: Positive = 5.0
    """Waiting requests that one replica may have."""
    start_up_s: DurationOrZero = 120.0
    """From the decision until a new replica takes traffic: node, image, weights, warm-up. It is paid for from its
    beginning."""
    interval_s: Interval = 15.0
    """Between two looks at the queue."""
    scale_down_after_s: DurationOrZero = 300.0

    @model_validator(mode="after")
    def _check(self) -> Autoscaling:
        if self.max_replicas < self.min_replicas:
            raise problem("max_replicas", f"must be at least min_replicas ({self.min_replicas}). Raise it")
        return self


class PoolSpec(Spec):
    """Replicas that serve requests of some lengths, or one half of every request, only."""

    name: Annotated[str, Field(min_length=1)]
    replicas: Replicas = 1
    max_input_tokens: Count | None = None
    """Longest prompt that belongs here; null = whatever no other pool takes."""
    role: Literal["prefill", "decode"] | None = None
    """Half of the work: prompts up to the first token, or all tokens after it. null = both."""
    autoscaling: Autoscaling | None = None


class Link(Spec):
    """How KV caches get from prefill to decode replicas. Each prefill replica sends one at a time."""

    bandwidth_gb_per_s: Positive
    """Gigabytes (1e9 bytes) per second that one prefill replica can send."""
    latency_us: NonNegative = 0.0
    """Microseconds from the last byte sent to the last byte there."""


class RateLimit(Spec):
    """A token bucket at the door; a request that finds it empty is refused (429)."""

    requests_per_s: Positive
    burst: WholeNumber = 0
    """Requests over the rate that are let through at once."""
    per: Literal["client", "class", "all"] = "client"
    """Who has a bucket."""
    clients: Count = 100
    """Clients that send the requests, each as likely; the turns of a conversation have one."""


class Failure(Spec):
    """A replica goes away with its KV cache and everything in it, at the end of the step that it is in."""

    replica: ReplicaId
    """Its number, counted from 0 through the pools as listed, or its name (replica-1; in a pool: NAME-1)."""
    at_s: DurationOrZero
    """From the start of the run."""
    restart_after_s: Duration | None = None
    """Until it takes traffic again, empty; null = never."""


def check_pools(pools: Sequence[PoolSpec], link: Link | None) -> None:
    """Raise a problem for pools that cannot share the requests."""
    if len({pool.name for pool in pools}) < len(pools):
        raise problem("pools", "must have different names")
    roles = [pool.role for pool in pools if pool.role is not None]
    if not roles:
        if link is not None:
            raise problem("link", "goes with pools of role prefill and decode. Remove it, or give the pools roles")
        limits = [pool.max_input_tokens for pool in pools]
        if len(set(limits)) < len(limits):
            raise problem("pools", "must have different max_input_tokens, and at most one none (null)")
        return
    if sorted(roles) != ["decode", "prefill"] or len(roles) < len(pools):
        raise problem(
            "pools", "must be one of role prefill and one of role decode where any has a role. Add the other one"
        )
    for number, pool in enumerate(pools):
        if pool.max_input_tokens is not None:
            raise problem(f"pools.{number}.max_input_tokens", "excludes role: every prompt is prefilled. Remove it")
    if link is None:
        raise problem("link", "is missing: prefill pools send KV caches over it, {bandwidth_gb_per_s: 25}")


def check_scaling(key: str, replicas: int, scaling: Autoscaling | None) -> None:
    """Raise a problem for a start outside of the limits. Fewer replicas than the least are raised to it."""
    if scaling is not None and replicas > scaling.max_replicas:
        raise problem(key, f"must be at most autoscaling.max_replicas ({scaling.max_replicas}, got {replicas})")


def replica_names(pools: Sequence[PoolSpec], replicas: int, scaling: Autoscaling | None) -> list[str]:
    """All that there can be, in the order in which they are counted."""
    groups = [(pool.name, num_places(pool.replicas, pool.autoscaling)) for pool in pools]
    return [
        f"{name}-{i}" for name, count in groups or [("replica", num_places(replicas, scaling))] for i in range(count)
    ]


def num_places(replicas: int, scaling: Autoscaling | None) -> int:
    """The most replicas that there can be at once."""
    return replicas if scaling is None else scaling.max_replicas


def check_failures(failures: Sequence[Failure], names: Sequence[str]) -> None:
    """Raise a problem for a failure of a replica that there never is."""
    for number, failure in enumerate(failures):
        if isinstance(failure.replica, int):
            if failure.replica >= len(names):
                raise problem(
                    f"failures.{number}.replica",
                    f"must be under the number of replicas ({len(names)}, counted from 0; got {failure.replica})",
                )
        elif failure.replica not in names:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise problem(f"failures.{number}.replica", f"must be one of {shown} (got {failure.replica!r})")
