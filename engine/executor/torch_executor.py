"""The executor that runs a real model with torch."""

from __future__ import annotations

import torch

from engine.errors import ConfigError, OutOfMemory
from engine.models.loader import open_weights
from engine.models.weights import WeightSource
from engine.outputs import ModelRunnerOutput, SchedulerOutput
from engine.resolve import ResolvedConfig
from engine.worker.model_runner import ModelRunner


class TorchExecutor:
    """Loads the model named by a resolved configuration and carries out plans on it.

    Raises `ModelLoadError` if the model cannot be loaded and `OutOfMemory` if it does not fit.
    """

    def __init__(self, resolved: ResolvedConfig, source: WeightSource | None = None) -> None:
        """`source` replaces the weights that the configuration names."""
        threads = resolved.config.device.threads
        if threads is not None and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)  # of the whole process: torch knows no other kind
        try:
            self._runner: ModelRunner | None = ModelRunner(resolved, source or open_weights(resolved.config.model))
        except (RuntimeError, MemoryError) as error:
            if _is_out_of_memory(error):
                raise _out_of_memory(error, "loading the model") from error
            raise

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Carry out one step; see `Executor`."""
        if self._runner is None:
            raise ConfigError("this executor is closed. Build a new one")
        try:
            return self._runner.run(plan)
        except (RuntimeError, MemoryError) as error:
            if _is_out_of_memory(error):
                raise _out_of_memory(error, f"a step of {plan.num_scheduled_tokens} tokens") from error
            raise

    def close(self) -> None:
        """Drop model and cache."""
        self._runner = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _is_out_of_memory(error: BaseException) -> bool:
    """torch has an error class for GPUs only; its CPU allocator says so in words."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def _out_of_memory(error: BaseException, doing: str) -> OutOfMemory:
    first_line = (str(error) or type(error).__name__).splitlines()[0]
    return OutOfMemory(
        f"out of memory in {doing}: {first_line}. Lower gpu_memory_utilization, max_num_batched_tokens or max_num_seqs"
    )
