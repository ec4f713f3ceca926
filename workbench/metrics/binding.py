"""What limited a run: why each busy step admitted nobody else, and what that says about the parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.metrics.records import RunRecord

_ADVICE = {
    "sequence_cap": ("max_num_seqs", "raise max_num_seqs (or add replicas if TPOT has no room)"),
    "token_budget": ("max_num_batched_tokens", "raise max_num_batched_tokens, or shorten what is prefilled at once"),
    "kv_blocks": ("KV blocks", "raise gpu_memory_utilization, shorten max_model_len or use a smaller KV data type"),
    "watermark": ("the watermark", "lower watermark or give the KV cache more memory"),
    "preempted_this_step": ("KV blocks (preemptions)", "raise gpu_memory_utilization or lower max_num_seqs"),
    "policy": ("an admission policy", "review batching, scheduler_delay_factor and the partial-prefill limits"),
}
_NOT_THE_LIMIT = {"sequence_cap": "max_num_seqs", "kv_blocks": "KV memory", "token_budget": "max_num_batched_tokens"}
_SELDOM = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Shares of busy steps (those that computed something) by the cause that ended admission."""

    num_busy_steps: int
    shares: Mapping[str, float]
    """Values of `engine.stats.AdmissionStop` -> share; causes that never occurred are absent."""
    recomputed_tokens: int
    """Tokens computed again after preemptions."""
    most_running: int

    @property
    def cause(self) -> str | None:
        """The most frequent limit, `no_waiting` aside; None where nothing ever limited admission."""
        limits = {name: share for name, share in self.shares.items() if name != "no_waiting"}
        return max(limits, key=lambda name: limits[name]) if limits else None

    @property
    def verdict(self) -> str:
        """One line for people."""
        if self.num_busy_steps == 0:
            return "No step computed anything."
        cause = self.cause
        if cause is None or self.shares[cause] < _SELDOM:
            return (
                f"Nothing waited in {self.shares.get('no_waiting', 0.0):.0%} of busy steps: the engine's limits did "
                f"not bind (at most {self.most_running} requests ran at once)."
            )
        name, advice = _ADVICE[cause]
        slack = [label for key, label in _NOT_THE_LIMIT.items() if key != cause and self.shares.get(key, 0.0) == 0.0]
        tail = f"; {' and '.join(slack)} {'is' if len(slack) == 1 else 'are'} not the limit" if slack else ""
        return f"{name} bound {self.shares[cause]:.0%} of busy steps: {advice}{tail}."

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "num_busy_steps": self.num_busy_steps,
            "shares": dict(self.shares),
            "recomputed_tokens": self.recomputed_tokens,
            "most_running": self.most_running,
            "verdict": self.verdict,
        }


def binding_of(record: RunRecord) -> Binding | None:
    """Attribution over all busy steps; None where the target shows no steps (a foreign endpoint)."""
    steps = record.steps
    if not len(steps):
        return None
    busy = steps.num_scheduled_requests > 0
    counts = Counter(stop for stop, is_busy in zip(steps.admission_stop, busy.tolist(), strict=True) if is_busy)
    total = sum(counts.values())
    return Binding(
        num_busy_steps=total,
        shares={name: count / total for name, count in counts.most_common()},
        recomputed_tokens=int(steps.num_recomputed_tokens.sum()),
        most_running=int(steps.num_running.max()),
    )
