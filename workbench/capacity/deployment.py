"""The `deployment` section of a plan file: what `workbench plan --write` says to deploy and `workbench export` reads.

deployment:
  model: Qwen/Qwen2.5-7B-Instruct
  gpu: a100-80g-sxm
  tensor_parallel_size: 1
  quantization: null            # fp8, int8, int4
  kv_cache_dtype: null          # fp8
  vllm_version: "0.32"          # whose memory profile gpu_memory_utilization is meant for
  engine: {max_num_seqs: 96}    # engine parameters by the workbench's names
  options: {}                   # further options of vLLM, by vLLM's names
  replicas: 3
  max_replicas: 6
  scale_at_waiting: 5           # waiting requests per replica that ask for another replica
  routing: {kind: prefix_hash, header: X-Prefix-Key}
  pools:
    - {name: short, max_prompt_tokens: 4000, replicas: 2, engine: {max_num_seqs: 128}}
    - {name: long, replicas: 1}
  rate_limit: {requests_per_s: 12, burst: 24, per_client: true, queue_limit: 40}
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine.errors import ConfigError

RoutingKind = Literal["random", "round_robin", "least_loaded", "least_kv", "prefix_hash"]


class _Part(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Routing(_Part):
    """How the router chooses among the replicas of a pool."""

    kind: RoutingKind = "round_robin"
    header: str = Field(default="X-Prefix-Key", pattern=r"^[A-Za-z][A-Za-z0-9-]*$")
    """Prefix hash: the request header that names the fixed part of the prompt (its hash, an application's name)."""


class Pool(_Part):
    """Replicas for one kind of request."""

    name: str = Field(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$")
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Longest prompt that belongs here; None takes all that no other pool takes."""
    replicas: int = Field(default=1, ge=1)
    engine: dict[str, Any] = Field(default_factory=dict)
    """On top of the deployment's."""


class RateLimit(_Part):
    """What is refused with 429 before it reaches an engine."""

    requests_per_s: float | None = Field(default=None, gt=0)
    burst: int = Field(default=0, ge=0)
    """Requests over the rate that are let through at once."""
    per_client: bool = False
    """The rate is that of each client address, not of all together."""
    queue_limit: int | None = Field(default=None, ge=0)
    """Requests per replica that may wait; those beyond are refused."""


class DeploymentPlan(_Part):
    """Everything that the exported files need."""

    model: str = Field(min_length=1)
    gpu: str | None = None
    tensor_parallel_size: int = Field(default=1, ge=1)
    quantization: Literal["fp8", "int8", "int4"] | None = None
    kv_cache_dtype: Literal["fp8"] | None = None
    vllm_version: str | None = None
    """Whose memory profile `gpu_memory_utilization` is meant for; None: a current one."""
    engine: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    replicas: int = Field(default=1, ge=1)
    max_replicas: int | None = Field(default=None, ge=1)
    scale_at_waiting: int = Field(default=5, ge=1)
    routing: Routing = Field(default_factory=Routing)
    pools: tuple[Pool, ...] = ()
    rate_limit: RateLimit | None = None

    @model_validator(mode="after")
    def _check(self) -> DeploymentPlan:
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise ValueError("pools: names must differ")
        if sum(pool.max_prompt_tokens is None for pool in self.pools) != (1 if self.pools else 0):
            raise ValueError("pools: exactly one must be without max_prompt_tokens, for the longest prompts")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas: must be at least replicas ({self.max_replicas} < {self.replicas})")
        return self


def read_deployment(value: object, source: str) -> DeploymentPlan:
    """The section as parsed. Raises `ConfigError` naming the key."""
    try:
        return DeploymentPlan.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("deployment", *first["loc"]))
        raise ConfigError(f"{source}: {where}: {first['msg']} (got {str(first['input'])[:80]!r})") from None
