"""Was a predicted run inside what its calibration measured?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.config import EngineConfig
from engine.executor.cost_model.calibration_profile import CalibrationProfile
from workbench.metrics.records import RunRecord, StepTable


def with_validity(record: RunRecord, profile: CalibrationProfile, config: EngineConfig) -> RunRecord:
    """The record with a note that names the profile and its error, and with what lay outside its range.

    `engine.profile.outside` lists the doubts; the verdict turns them into reasons.
    """
    outside = [*_unlike(config, profile), *_beyond(record.steps, profile)]
    facts = {**record.engine, "profile": {**record.engine["profile"], "outside": outside}}
    return with_note(replace(record, engine=facts))


def with_note(record: RunRecord) -> RunRecord:
    """The record with a note that names the profile behind it and its error."""
    profile = record.engine["profile"]
    note = f"predicted with profile {profile['name']} ({profile['kind']}; {profile['error_band']})"
    return replace(record, notes=(*record.notes, note))


def _unlike(config: EngineConfig, profile: CalibrationProfile) -> Iterator[str]:
    values = config.to_dict()
    for name, calibrated in profile.engine.items():
        if name in values and values[name] != calibrated:
            yield f"{name} is {values[name]}, but {calibrated} when the profile was made"


def _beyond(steps: StepTable, profile: CalibrationProfile) -> Iterator[str]:
    if len(steps) == 0:
        return
    limits = profile.validity
    seen = (
        ("sequences in a step", int(steps.num_scheduled_requests.max()), limits.max_num_seqs),
        ("tokens in a step", int(steps.num_scheduled_tokens.max()), limits.max_step_tokens),
        ("tokens in the KV cache", int(steps.num_kv_tokens.max()), limits.max_kv_tokens),
    )
    for what, value, limit in seen:
        if limit is not None and value > limit:
            yield f"{value} {what}, but at most {limit} when the profile was made"
