"""What an answer rests on: the first line of every output about a server that was simulated or measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from workbench.records.figures import speed_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Fields that do not apply are None."""

    kind: str
    """`simulated`, `embedded` or `endpoint`."""
    model: str
    gpu: str | None = None
    """Catalogue id; None where none was named (an engine on this machine, somebody's server)."""
    tp: int | None = None
    """GPUs of one instance."""
    profile: str | None = None
    """Of the cost model."""
    error_p90: float | None = None
    """Largest P90 error that the profile states of its operators, as a fraction."""
    vllm_version: str | None = None
    """Whose scheduling was assumed."""
    is_async: bool | None = None
    """Asynchronous scheduling was assumed."""

    @classmethod
    def of(cls, kind: str, model: str, engine: Mapping[str, Any]) -> Basis:
        """Read the facts that a run stores about its engine."""
        profile = engine.get("profile")
        if kind != "simulated" or not isinstance(profile, Mapping):
            return cls(kind=kind, model=model)
        return cls(
            kind=kind,
            model=model,
            gpu=engine.get("gpu"),
            tp=engine.get("tensor_parallel_size"),
            profile=f"{profile.get('kind')} {profile.get('name')}",
            error_p90=round(speed_error(profile).share, 4),
            vllm_version=engine.get("vllm_version"),
            is_async=engine.get("async_scheduling"),
        )

    @property
    def sentence(self) -> str:
        """For people."""
        if self.kind == "endpoint":
            return f"Measured: {self.model} on a server that answered over HTTP."
        if self.kind == "embedded":
            return f"Measured: {self.model} on this machine's embedded engine; figures of a GPU differ."
        hardware = "a calibrated machine" if self.gpu is None else f"{self.tp or 1} x {self.gpu}"
        error = "" if self.error_p90 is None else f" (P90 error of its operators up to {self.error_p90:.0%})"
        mode = "" if self.is_async is None else f", {'a' if self.is_async else ''}synchronous scheduling"
        version = "" if self.vllm_version is None else f", scheduled as vLLM {self.vllm_version}{mode}"
        return (
            f"Simulated: {self.model} on {hardware}, profile {self.profile}{error}{version}. No such GPU ran; the "
            "machine that simulated is not the hardware."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return asdict(self)
