"""Where the load goes, discriminated by `kind`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from workbench.scenario.base import Count, Duration, Spec, WholeNumber, problem


class EmbeddedTarget(Spec):
    """The engine of this project, in process, on the wall clock."""

    kind: Literal["embedded"]


RoutingName = Literal["random", "round_robin", "least_loaded", "least_kv", "prefix_hash"]


class PoolSpec(Spec):
    """Replicas that serve requests of some lengths only."""

    name: Annotated[str, Field(min_length=1)]
    replicas: Count = 1
    max_input_tokens: Count | None = None
    """Longest prompt that belongs here; null = whatever no other pool takes."""


class SimulatedTarget(Spec):
    """The same scheduler with a cost model of a GPU that is not here, on a virtual clock."""

    kind: Literal["simulated"]
    gpu: str | None = None
    """Name in the catalogue, for example h100-80g-sxm; null = what `profile` was made on."""
    profile: Path | None = None
    """Calibration (JSON of `workbench calibrate`); relative to the scenario file."""
    tensor_parallel_size: Count = 1
    quantization: Literal["fp8", "int8", "int4"] | None = None
    """Of the weights; null = bfloat16."""
    kv_cache_dtype: Literal["fp8"] | None = None
    """Of the KV cache; null = bfloat16."""
    replicas: Count = 1
    """Engines of this kind behind one router."""
    routing: RoutingName = "round_robin"
    """How the router chooses among the replicas of a pool."""
    prefix_tokens: Count = 64
    """Routing prefix_hash: leading prompt tokens that are hashed; requests of a conversation go by the conversation."""
    load_bound: Annotated[float, Field(ge=1.0)] = 1.25
    """Routing prefix_hash: most open requests on a replica, times the mean."""
    queue_limit: WholeNumber | None = None
    """Requests that may wait at a replica; one more is refused (429). null = no limit."""
    pools: tuple[PoolSpec, ...] = ()
    """Instead of `replicas`: groups of replicas by prompt length."""

    @property
    def is_fleet(self) -> bool:
        """There is a router in front."""
        return self.replicas > 1 or bool(self.pools) or self.queue_limit is not None

    @model_validator(mode="after")
    def _check_pools(self) -> SimulatedTarget:
        if not self.pools:
            return self
        if self.replicas != 1:
            raise problem("replicas", "excludes pools, which have replicas of their own. Remove one of them")
        if len({pool.name for pool in self.pools}) < len(self.pools):
            raise problem("pools", "must have different names")
        limits = [pool.max_input_tokens for pool in self.pools]
        if len(set(limits)) < len(limits):
            raise problem("pools", "must have different max_input_tokens, and at most one none (null)")
        return self

    @model_validator(mode="after")
    def _check_device(self) -> SimulatedTarget:
        if self.gpu is None and self.profile is None:
            raise problem("gpu", "is missing: name a GPU (`workbench catalog gpus` lists them) or a profile")
        return self


class EndpointTarget(Spec):
    """Any OpenAI-compatible server."""

    kind: Literal["endpoint"]
    url: str
    """For example http://localhost:8000 (with or without /v1)."""
    model: str | None = None
    """Name sent with each request; null = the first the server lists."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never stored."""
    timeout_s: Duration = 600.0
    """Longest wait for one response."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if not re.match(r"https?://[^/\s]+", value):
            raise problem("", "must be an http:// or https:// address")
        return value.rstrip("/")


def _with_kind(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


AnyTarget = Annotated[EmbeddedTarget | SimulatedTarget | EndpointTarget, Field(discriminator="kind")]
TargetSpec = Annotated[AnyTarget, BeforeValidator(_with_kind, json_schema_input_type=str | AnyTarget)]
