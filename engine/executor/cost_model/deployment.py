"""What a deployment adds to its model and GPUs: element types, and time that no operator takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Element types of a deployment."""

    weights: str = "bfloat16"
    """`bfloat16`, `fp8`, `int8`, `int4` (weight-only: computes in bfloat16)."""
    kv: str = "bfloat16"

    @property
    def weight_bytes(self) -> float:
        return {"fp8": 1.0, "int8": 1.0, "int4": 0.5625}.get(self.weights, 2.0)  # int4: scales and zeros included

    @property
    def kv_bytes(self) -> float:
        return 1.0 if self.kv.startswith("fp8") else 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What is not an operator. Fitted end to end; the defaults are those of vLLM V1 with CUDA graphs."""

    layer_us: float = 12.0
    """Per layer: gaps between kernels and the small kernels (norms, rotary, cache write) at one token."""
    step_us: float = 300.0
    """Per step: launch, sampling, copies, what the device waits for in any case."""
    sequence_us: float = 1.5
    """Per scheduled sequence: input preparation, sampling, detokenising, where it is not hidden."""
    eager_layer_us: float = 90.0
    """Per layer, additionally, when no CUDA graph is replayed (eager mode): kernel launches from the CPU."""
    elementwise_passes: float = 12.0
    """Times the hidden states are read or written per layer outside of GEMMs and attention."""
    request_ms: float = 3.0
    """Per request in the server's front end, one after the other: HTTP, tokenising, hand-over to the engine."""
    delay_ms: float = 0.0
    """Per request beside that, many at a time: connection, client, templates."""
    sorts_logits: bool = False
    """Rows are sampled with top-p or top-k, which sorts the vocabulary (many models' generation_config asks for it)."""
    is_async: bool = True
    """CPU work overlaps with the device (asynchronous scheduling)."""
