"""Attention backends by name. A new one is a line here and must pass the backend contract test."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.attention.base import AttentionBackend, AttentionShape
from engine.errors import ConfigError, suggest

BackendFactory = Callable[[AttentionShape, torch.device], AttentionBackend]


def _torch_reference(shape: AttentionShape, device: torch.device) -> AttentionBackend:
    from engine.attention.torch_reference import TorchReferenceBackend

    return TorchReferenceBackend(shape, device)


def _cpu(shape: AttentionShape, device: torch.device) -> AttentionBackend:
    from engine.attention.cpu import CpuBackend

    return CpuBackend(shape, device)


def _triton(shape: AttentionShape, device: torch.device) -> AttentionBackend:
    from engine.attention.triton import TritonBackend

    return TritonBackend(shape, device)


# Imported on demand: numba compiles and triton looks for a driver at import.
BACKENDS: dict[str, BackendFactory] = {
    "torch_reference": _torch_reference,
    "cpu": _cpu,
    "triton": _triton,
}


def build_backend(name: str, shape: AttentionShape, device: torch.device) -> AttentionBackend:
    """The backend `name`. Raises `ConfigError` for an unknown one."""
    if name not in BACKENDS:
        raise ConfigError(f"attention_backend: {name!r} is not registered. {suggest(name, BACKENDS)}")
    return BACKENDS[name](shape, device)
