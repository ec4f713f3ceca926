"""What torch knows about devices and element types."""

from __future__ import annotations

import torch

from engine.config import Dtype
from engine.errors import ConfigError
from engine.resolve import DeviceFacts, cpu_facts

TORCH_DTYPES: dict[Dtype, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def probe_device(device: str = "auto") -> DeviceFacts:
    """Facts for `resolve`: `auto` takes the first CUDA device, else the CPU.

    Raises `ConfigError` for a device that is not there.
    """
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return cpu_facts()
    if not torch.cuda.is_available():
        raise ConfigError(f"device: {device} was asked for but no CUDA device was found. Use device: cpu")
    try:
        index = torch.device("cuda" if device == "auto" else device).index or 0
        free, total = torch.cuda.mem_get_info(index)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ConfigError(f"device: {device!r} is not one of this machine's devices ({error})") from error
    return DeviceFacts(
        kind="cuda",
        name=f"cuda:{index}",
        memory_bytes=total,
        memory_reason=f"total memory of {torch.cuda.get_device_name(index)}",
        num_threads=torch.get_num_threads(),
        # The driver's context and other processes hold this much already.
        overhead_bytes=total - free,
    )
