"""Where the load goes, discriminated by `kind`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from engine.catalog import gpu_id
from engine.config import engine_field_names
from engine.errors import suggest
from workbench.scenario.base import Count, Duration, Spec, WholeNumber, problem
from workbench.scenario.fleet import (
    Autoscaling,
    Failure,
    Link,
    PoolSpec,
    RateLimit,
    Replicas,
    RetryPolicy,
    RoutingName,
    check_failures,
    check_pools,
    check_scaling,
    replica_names,
)


def _version(value: str) -> str:
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", value) is None:
        raise problem("", "must be a version of vLLM such as 0.32")
    return value


class EmbeddedTarget(Spec):
    """The engine of this project, in process, on the wall clock."""

    kind: Literal["embedded"]


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
    vllm_version: Annotated[str, AfterValidator(_version)] = "0.32"
    """Whose scheduling and memory profile are assumed: asynchronous scheduling is the default since 0.12, captured
    graphs count against the memory utilisation since 0.21."""
    replicas: Replicas = 1
    """Engines of this kind behind one router."""
    routing: RoutingName = "round_robin"
    """How the router chooses among the replicas of a pool."""
    prefix_tokens: Count = 64
    """Routing prefix_hash: leading prompt tokens that are hashed; requests of a conversation go by the conversation."""
    load_bound: Annotated[float, Field(ge=1.0)] = 1.25
    """Routing prefix_hash: most open requests on a replica, times the mean."""
    queue_limit: WholeNumber | None = None
    """Requests that may wait at a replica; one more is refused (429). null = no limit."""
    rate_limit: RateLimit | None = None
    """Requests over a rate are refused (429) before they are routed. null = no limit."""
    deadline_s: Duration | None = None
    """Longest wait for the first step. A request is refused (503) where the queue has lately been too slow for it, and
    given up (504) when it has waited so long. null = no limit."""
    pools: tuple[PoolSpec, ...] = ()
    """Instead of `replicas`: groups of replicas by prompt length, or by prefill and decode."""
    link: Link | None = None
    """Between pools of role prefill and decode."""
    autoscaling: Autoscaling | None = None
    """Of `replicas`; pools have their own. The run starts with `replicas`, or `min_replicas` where that is more."""
    failures: tuple[Failure, ...] = ()
    retry: RetryPolicy = "all"
    """Which requests of a failed replica another one takes over: `all` (prompt and tokens so far are computed again),
    `unstarted` (those without a token, as a proxy can), `none`. The others fail."""

    @property
    def is_fleet(self) -> bool:
        """There is a router in front."""
        return self.replicas > 1 or bool(self.pools or self.failures) or self.refuses or self.autoscaling is not None

    @property
    def num_replicas(self) -> int:
        """Asked for, in all pools."""
        return sum(pool.replicas for pool in self.pools) if self.pools else self.replicas

    @property
    def refuses(self) -> bool:
        """Requests may be turned away on purpose."""
        return any(limit is not None for limit in (self.queue_limit, self.rate_limit, self.deadline_s))

    @field_validator("gpu")
    @classmethod
    def _unify_gpu(cls, value: str | None) -> str | None:
        return None if value is None else gpu_id(value)

    @model_validator(mode="after")
    def _check_fleet(self) -> SimulatedTarget:
        if self.pools and self.replicas != 1:
            raise problem("replicas", "excludes pools, which have replicas of their own. Remove one of them")
        if self.pools and self.autoscaling is not None:
            raise problem("autoscaling", "excludes pools, which have autoscaling of their own. Move it into the pools")
        check_pools(self.pools, self.link)
        check_scaling("replicas", self.replicas, self.autoscaling)
        for number, pool in enumerate(self.pools):
            check_scaling(f"pools.{number}.replicas", pool.replicas, pool.autoscaling)
        check_failures(self.failures, replica_names(self.pools, self.replicas, self.autoscaling))
        return self

    @model_validator(mode="after")
    def _check_device(self) -> SimulatedTarget:
        if self.gpu is None and self.profile is None:
            raise problem("gpu", "is missing: name a GPU (`workbench catalog gpus` lists them) or a profile")
        return self


LAUNCH_PLACEHOLDER = r"\{(\w+)\}"
LAUNCH_WORDS = ("model", "port", "options", "settings")
"""What `launch` may have in braces beside the names of engine parameters."""
NAMED_ONLY = ("gpu", "replicas", "routing")
"""Parameters of a simulated target that no server has an option for: `launch` must name them to be told."""
LAUNCH_FIELDS = ("tensor_parallel_size", "quantization", "kv_cache_dtype", *NAMED_ONLY)
"""Of a simulated target; a server that is started is told them too."""


class EndpointTarget(Spec):
    """Any OpenAI-compatible server: one that stands (`url`), or one started for each configuration (`launch`)."""

    kind: Literal["endpoint"]
    url: str = ""
    """For example http://localhost:8000 (with or without /v1). With `launch` by default http://127.0.0.1:PORT."""
    launch: Annotated[str, Field(min_length=1)] | None = None
    """Command that serves in the foreground until it is told to stop (SIGTERM), without a shell. In braces: {model};
    {port}, a free one (or that of `url`); {options}, the engine parameters as vLLM's options; {settings}, as
    `workbench serve` takes them; {max_num_seqs} and so on, one value."""
    ready_within: Duration = 900.0
    """Longest wait for a started server's first answer."""
    model: str | None = None
    """Name sent with each request; null = the first the server lists."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never stored."""
    timeout_s: Duration = 600.0
    """Longest wait for one response."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if value and not re.match(r"https?://[^/\s]+", value):
            raise problem("", "must be an http:// or https:// address")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _check_launch(self) -> EndpointTarget:
        if self.launch is None:
            if not self.url:
                raise problem("", "needs url, the address of the server, or launch, the command that starts one")
            return self
        try:
            words = shlex.split(self.launch)
        except ValueError as error:
            raise problem("launch", f"cannot be split into words ({error}). Close the quotes") from None
        if not words:
            raise problem("launch", "must not be empty")
        if not self.url and "port" not in self.placeholders:
            raise problem("launch", "must have {port} where the command takes its port, or else url must be given")
        known = (*LAUNCH_WORDS, *LAUNCH_FIELDS, *engine_field_names())
        for name in self.placeholders:
            if name not in known:
                raise problem("launch", f"{{{name}}} stands for nothing. {suggest(name, known)}")
        return self

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Names that `launch` has in braces."""
        return tuple(dict.fromkeys(re.findall(LAUNCH_PLACEHOLDER, self.launch or "")))

    def unheard(self, names: Iterable[str]) -> list[str]:
        """Parameters that a started server would not be told."""
        told = set(self.placeholders)
        tells_all = bool(told & {"options", "settings"})
        return [name for name in names if name not in told and not (tells_all and name not in NAMED_ONLY)]


def broken_target_rule(name: str, value: object) -> str | None:
    """What is wrong with this value of this one field of a simulated target, whatever the others are."""
    try:
        SimulatedTarget.model_validate({"kind": "simulated", "gpu": "any", name: value})
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).replace("Input should", "must")
    return None


def _with_kind(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


AnyTarget = Annotated[EmbeddedTarget | SimulatedTarget | EndpointTarget, Field(discriminator="kind")]
TargetSpec = Annotated[AnyTarget, BeforeValidator(_with_kind, json_schema_input_type=str | AnyTarget)]
