"""Runs on disk: one directory each, complete or absent.

RUN/run.json           scenario, engine, seed, provenance, metrics, verdict
RUN/requests.parquet   one row per request, token times included
RUN/steps.parquet      one row per engine step
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.metrics.records import RunRecord
from workbench.store.atomic import TEMPORARY_PREFIX, json_text, new_directory, read_json
from workbench.store.errors import StoreError
from workbench.store.tables import read_requests, read_steps, write_requests, write_steps

_FORMAT = 1
RUN_FILE = "run.json"
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "created_at": str,
    "scenario": dict,
    "seed": int,
    "params": dict,
    "metrics": (dict, type(None)),
    "classes": dict,
    "reasons": list,
    "provenance": dict,
}
"""What later readers take apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What `run.json` says of a run; JSON types only."""

    created_at: str
    """ISO 8601 with zone, from the caller's clock."""
    scenario: Mapping[str, Any]
    """Validated, defaults written out."""
    seed: int
    workload_fingerprint: str
    params: Mapping[str, Any] = field(default_factory=dict)
    """Engine parameters on top of the scenario's (a trial's)."""
    metrics: Mapping[str, Any] | None = None
    """The object `M`; None where the run broke."""
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Class name -> `M`."""
    verdict: str | None = None
    reasons: Sequence[str] = ()
    failure: str | None = None
    """Why the run broke, if it did."""
    window_s: Sequence[float] | None = None
    """[start, end] of the part that counts, seconds of the run's clock; None in runs stored before it was kept."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Versions, hardware, commit: `workbench.store.provenance`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run with its records."""

    info: RunInfo
    record: RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One line of a listing."""

    directory: Path
    info: RunInfo | None
    """None where the directory is broken."""
    problem: str | None = None
    """Why, then."""


def save_run(directory: Path, run: StoredRun) -> Path:
    """Write a run into `directory`, which must not exist. Raises `StoreError`; nothing is left behind then."""
    record = run.record
    values = {
        "format": _FORMAT,
        **{name: _plain(getattr(run.info, name)) for name in RunInfo.__dataclass_fields__},
        "record": {
            "class_names": list(record.requests.class_names),
            "duration_s": record.duration_s,
            "clock": record.clock,
            "engine": _plain(record.engine),
            "prefix_queried_tokens": record.prefix_queried_tokens,
            "prefix_hit_tokens": record.prefix_hit_tokens,
            "decision_fingerprint": record.decision_fingerprint,
            "stopped": record.stopped,
            "notes": list(record.notes),
            "fleet": None if record.fleet is None else _plain(record.fleet),
        },
    }
    with new_directory(directory) as temporary:
        write_requests(temporary / "requests.parquet", record.requests)
        write_steps(temporary / "steps.parquet", record.steps)
        (temporary / RUN_FILE).write_text(json_text(values), encoding="utf-8")
    return directory


def load_run(directory: Path) -> StoredRun:
    """A run with its records, as it was saved. Raises `StoreError`."""
    values = _read_run_file(directory)
    info = _info(directory, values)
    facts = values.get("record")
    if not isinstance(facts, dict):
        raise StoreError(f"{directory / RUN_FILE}: has no 'record'. Was it written by another version?")
    try:
        record = RunRecord(
            requests=read_requests(directory / "requests.parquet", tuple(facts["class_names"])),
            steps=read_steps(directory / "steps.parquet"),
            duration_s=float(facts["duration_s"]),
            clock=str(facts["clock"]),
            engine=dict(facts["engine"]),
            prefix_queried_tokens=int(facts["prefix_queried_tokens"]),
            prefix_hit_tokens=int(facts["prefix_hit_tokens"]),
            decision_fingerprint=facts["decision_fingerprint"],
            stopped=facts.get("stopped"),
            notes=tuple(facts["notes"]),
            fleet=facts.get("fleet"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{directory / RUN_FILE}: 'record' is not as expected ({error!r})") from None
    return StoredRun(info=info, record=record)


def load_run_info(directory: Path) -> RunInfo:
    """What `run.json` says, without the tables. Raises `StoreError`."""
    return _info(directory, _read_run_file(directory))


def list_runs(parent: Path) -> list[RunEntry]:
    """The runs below `parent`, by name; broken ones are listed with their problem. Empty where there is no `parent`."""
    try:
        names = sorted(entry for entry in parent.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{parent}: cannot be listed ({error.strerror or error})") from None
    entries = []
    for directory in names:
        if directory.name.startswith(TEMPORARY_PREFIX):
            continue  # a writer is at work, or was killed: there is no run yet
        try:
            entries.append(RunEntry(directory=directory, info=load_run_info(directory)))
        except StoreError as error:
            entries.append(RunEntry(directory=directory, info=None, problem=str(error)))
    return entries


def _read_run_file(directory: Path) -> dict[str, Any]:
    values = read_json(directory / RUN_FILE)
    if values.get("format") != _FORMAT:
        raise StoreError(
            f"{directory / RUN_FILE}: format {values.get('format')!r}, not {_FORMAT}. Written by another version?"
        )
    return values


def _info(directory: Path, values: Mapping[str, Any]) -> RunInfo:
    values = {"window_s": None, **values}
    missing = [name for name in RunInfo.__dataclass_fields__ if name not in values]
    if missing:
        raise StoreError(f"{directory / RUN_FILE}: has no {missing[0]!r}. Was it written by another version?")
    for name, kinds in _KINDS.items():
        if not isinstance(values[name], kinds):
            raise StoreError(f"{directory / RUN_FILE}: {name!r} is not as expected. Was it written by another version?")
    return RunInfo(**{name: values[name] for name in RunInfo.__dataclass_fields__})


def _plain(value: Any) -> Any:
    """`value` in JSON types; paths and other objects as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
