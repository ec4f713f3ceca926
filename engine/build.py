"""The composition root: from a configuration to a running core. The only place where both planes meet."""

from __future__ import annotations

from engine.clock import Clock, WallClock
from engine.config import EngineConfig
from engine.core.admission import admission_policies
from engine.core.async_scheduler import AsyncScheduler
from engine.core.block_manager import BlockManager
from engine.core.preemption import PreemptionPolicy, RecomputePreemption, SwapPreemption
from engine.core.scheduler import Scheduler
from engine.engine_core import EngineCore
from engine.models.loader import find_spec
from engine.resolve import ResolvedConfig, resolve


def build_scheduler(resolved: ResolvedConfig) -> Scheduler:
    """The control plane of a resolved configuration: no torch, no clock."""
    config = resolved.config
    blocks = BlockManager(
        num_blocks=resolved.num_blocks,
        block_size=config.cache.block_size,
        max_model_len=resolved.max_model_len,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        kv_policy=config.cache.kv_policy,
        watermark=config.scheduler.watermark,
    )
    preemption: PreemptionPolicy = (
        SwapPreemption(blocks, resolved.num_host_blocks)
        if config.scheduler.preemption == "swap"
        else RecomputePreemption(blocks)
    )
    scheduler_class = AsyncScheduler if config.scheduler.async_scheduling else Scheduler
    return scheduler_class(
        config.scheduler, blocks, preemption=preemption, admission=admission_policies(config.scheduler)
    )


def build_engine(config: EngineConfig, *, clock: Clock | None = None) -> tuple[EngineCore, ResolvedConfig]:
    """A core over a real model on this machine, weights loaded.

    Raises `ConfigError`, `MemoryBudgetError` or `ModelLoadError`, all before anything runs.
    """
    # torch is imported here and not before, so that planning and simulation never wait for it.
    from engine.executor.torch_executor import TorchExecutor
    from engine.worker.device import probe_device

    resolved = resolve(config, find_spec(config.model.model), probe_device(config.device.device))
    return EngineCore(build_scheduler(resolved), TorchExecutor(resolved), clock or WallClock()), resolved
