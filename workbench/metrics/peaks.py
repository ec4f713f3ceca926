"""What a run asked of the engine's limits at most: one that lies above never bound, and any other above is the same."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.metrics.records import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The most that any run of a trial asked of the engine's limits; a limit above it never bound."""

    num_running: int = 0
    num_scheduled_tokens: int = 0
    num_blocks: int = 0
    kv_stopped: bool = False
    """Admission waited for blocks, or a request was preempted."""

    @classmethod
    def of(cls, record: RunRecord) -> Peaks | None:
        """None where the target shows no steps."""
        steps = record.steps
        if not len(steps):
            return None
        stops = {"kv_blocks", "watermark", "preempted_this_step"}
        return cls(
            num_running=int(steps.num_running.max()),
            num_scheduled_tokens=int(steps.num_scheduled_tokens.max()),
            num_blocks=int(steps.num_blocks_in_use.max()),
            kv_stopped=bool(stops & set(steps.admission_stop)) or bool(steps.num_preempted.any()),
        )

    def joined(self, other: Peaks | None) -> Peaks:
        """The higher of both."""
        if other is None:
            return self
        return Peaks(
            num_running=max(self.num_running, other.num_running),
            num_scheduled_tokens=max(self.num_scheduled_tokens, other.num_scheduled_tokens),
            num_blocks=max(self.num_blocks, other.num_blocks),
            kv_stopped=self.kv_stopped or other.kv_stopped,
        )
