"""Configurations that cannot differ: a limit that never bound in a finished trial may be set to anything above it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.search.outcome import TrialOutcome, TrialState
from workbench.search.trials import TrialRecord

_CAPS = {"max_num_seqs": "num_running", "max_num_batched_tokens": "num_scheduled_tokens"}
"""Limit -> the peak that stays below it where it does not bind."""
_FOLLOWING = (
    "gpu_memory_utilization",
    "num_blocks",
    "max_num_active_seqs",
    "bytes_per_block",
    "weight_bytes",
    "activation_bytes",
    "kv_bytes",
    "reasons",
)
"""Derived from the others, or felt only through the number of blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """A finished trial whose outcome is that of the configuration asked about."""

    record: TrialRecord
    unbound: tuple[str, ...]
    """The limits in which the two differ, none of which binds."""

    @property
    def sentence(self) -> str:
        names = ", ".join(self.unbound)
        why = f"{names} never bound there" if names else "it is the same configuration"
        return f"duplicate of trial {self.record.number}: {why}"


def find_duplicate(
    engine: Mapping[str, Any], finished: Iterable[TrialRecord], *, shares_prefixes: bool
) -> Duplicate | None:
    """The first finished trial that `engine` (resolved parameters, `num_blocks` among them) cannot differ from.

    Only for targets whose runs repeat exactly. With `shares_prefixes` the number of blocks decides what stays cached,
    so it has to be the same.
    """
    for record in finished:
        outcome = record.outcome
        if outcome.state is not TrialState.COMPLETE or outcome.duplicate_of is not None or not outcome.peaks:
            continue
        unbound = _differing_limits(engine, outcome, shares_prefixes=shares_prefixes)
        if unbound is not None:
            return Duplicate(record=record, unbound=unbound)
    return None


def _differing_limits(
    engine: Mapping[str, Any], outcome: TrialOutcome, *, shares_prefixes: bool
) -> tuple[str, ...] | None:
    """The limits that differ without binding; None where something else differs or binds."""
    theirs, peaks = outcome.engine or {}, outcome.peaks or {}
    for name in engine.keys() & theirs.keys():
        if name not in _CAPS and name not in _FOLLOWING and engine[name] != theirs[name]:
            return None
    if engine.get("replicas", 1) != theirs.get("replicas", 1):
        return None  # an engine without a router says nothing of replicas
    differing = []
    for name, peak in _CAPS.items():
        if engine[name] == theirs[name]:
            continue
        if min(engine[name], theirs[name]) <= peaks[peak] or _is_felt(name, engine):
            return None
        differing.append(name)
    if engine["num_blocks"] != theirs["num_blocks"]:
        if shares_prefixes or not _has_spare_blocks(engine, theirs, peaks):
            return None
        differing.append("num_blocks")
    return tuple(differing)


def _is_felt(name: str, engine: Mapping[str, Any]) -> bool:
    """The limit has an influence of its own, bound or not."""
    if name == "max_num_batched_tokens":
        return bool(engine.get("long_prefill_token_threshold_adaptive")) or not engine.get("enable_chunked_prefill")
    return bool(engine.get("batching", "continuous") != "continuous")


def _has_spare_blocks(engine: Mapping[str, Any], theirs: Mapping[str, Any], peaks: Mapping[str, Any]) -> bool:
    """Blocks were never short, and would not be in the smaller pool with one more request of full length."""
    if peaks["kv_stopped"] or engine.get("watermark") or engine.get("kv_policy", "paged") != "paged":
        return False
    full_length = -(-engine["max_model_len"] // engine["block_size"])
    least = min(int(engine["num_blocks"]), int(theirs["num_blocks"]))
    return least > int(peaks["num_blocks"]) + int(full_length)
