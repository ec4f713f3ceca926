"""The one seam between control plane and model plane."""

from __future__ import annotations

from typing import Protocol

from engine.outputs import ModelRunnerOutput, SchedulerOutput


class Executor(Protocol):
    """Carries out the plan of one step. Implementations: a real model, a simulated device.

    Plans must arrive in the order in which the scheduler made them, each of them, those without scheduled requests
    included if they carry finished or preempted ids or copies.
    """

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Do the copies, compute the scheduled tokens, sample where a sequence is complete.

        Raises `OutOfMemory` if the device's memory ran out; the KV cache is then undefined for this plan's requests.
        """
        ...

    def close(self) -> None:
        """Free the device's memory. Calling it twice is harmless; `execute` afterwards is an error."""
        ...
