"""What the exported files say."""

from __future__ import annotations

from dataclasses import dataclass

OptionValue = bool | int | float | str

MODEL_FOLDER = "/models"
"""Where the server's container keeps downloaded models (Hugging Face's HF_HOME)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """Replicas with the same options."""

    name: str
    options: tuple[tuple[str, OptionValue], ...]
    """vLLM's names without dashes in front, in order; checked against the version."""
    replicas: int
    max_replicas: int
    max_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterFacts:
    """What stands in front of the replicas."""

    routing: str
    header: str
    requests_per_s: float | None = None
    burst: int = 0
    per_client: bool = False
    max_in_flight: int | None = None
    """Requests running and waiting at all replicas together, beyond which 429 is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts:
    """One deployment."""

    name: str
    """Fit for DNS: lower case, digits, dashes."""
    model: str
    vllm_version: str
    image: str
    gpus_per_replica: int
    gpu: str | None
    """Id in the catalogue; None where it is not known."""
    pools: tuple[PoolFacts, ...]
    """At least one."""
    scale_at_waiting: int
    provenance: tuple[str, ...]
    """Lines without comment signs."""
    router: RouterFacts | None = None
    """None: a plain service is enough."""
    port: int = 8000
    namespace: str = "default"
    """Of Kubernetes."""
