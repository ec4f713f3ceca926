"""Where the load goes, discriminated by `kind`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from workbench.scenario.base import Count, Duration, Spec, problem


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
