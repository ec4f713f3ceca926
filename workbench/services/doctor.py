"""`workbench doctor`: reads what it is pointed at, and lets the rules speak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.capacity.diagnosis import Evidence, Finding, apply_rules
from workbench.capacity.diagnosis.evidence import Limits, Memory
from workbench.capacity.diagnosis.metrics_dump import is_metrics_dump, read_metrics_dumps
from workbench.capacity.diagnosis.vllm_log import is_vllm_log, read_vllm_log
from workbench.scenario import ScenarioError
from workbench.services.doctor_run import run_evidence
from workbench.store.runs import RUN_FILE
from workbench.store.studies import STUDY_FILE, load_study

_FOLDERS = (Path(), Path("reports"), Path("reports/runs"))
_MOST_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Findings, most severe first, and what could not be looked at."""

    source: str
    path: Path
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The object of `workbench doctor --json`."""
        return {
            "source": self.source,
            "path": str(self.path),
            "findings": [finding.to_dict() for finding in self.findings],
            "healthy": not self.findings,
            "message": self.findings[0].cause if self.findings else "nothing found",
            "notes": list(self.notes),
        }


def diagnose(path: Path) -> Diagnosis:
    """Raises `ScenarioError` for what is none of the four kinds, `StoreError` for a broken run or study."""
    found = _find(path)
    if (found / RUN_FILE).is_file():
        return _from(found, run_evidence(found))
    if (found / STUDY_FILE).is_file():
        return _study(found)
    texts = [_read(file) for file in _files(found)]
    if any(is_metrics_dump(text) for text in texts):
        try:
            return _from(found, read_metrics_dumps(text for text in texts if is_metrics_dump(text)))
        except ValueError as error:
            raise ScenarioError(f"{path}: is not in the Prometheus text format ({error})") from None
    text = "\n".join(texts)
    if is_vllm_log(text):
        return _from(found, read_vllm_log(text))
    raise ScenarioError(
        f"{path}: is no run, no study, no vLLM log and no metrics dump. Give a folder with {RUN_FILE} or {STUDY_FILE}, "
        "the server's output, or what GET /metrics answers"
    )


def _find(path: Path) -> Path:
    for folder in _FOLDERS:
        if (folder / path).exists():
            found = folder / path
            return found.parent if found.name in (RUN_FILE, STUDY_FILE) else found
    raise ScenarioError(f"{path}: does not exist, neither here nor below reports/")


def _files(path: Path) -> Sequence[Path]:
    """A file, or the files of a folder of dumps in order of name."""
    if path.is_file():
        return [path]
    files = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    if not files:
        raise ScenarioError(f"{path}: is a folder without {RUN_FILE}, {STUDY_FILE} or files")
    return files


def _read(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(_MOST_BYTES).decode("utf-8", errors="replace")


def _from(path: Path, evidence: Evidence) -> Diagnosis:
    return Diagnosis(source=evidence.source, path=path, findings=apply_rules(evidence), notes=evidence.notes)


def _study(directory: Path) -> Diagnosis:
    """The best trial and the default: what the best still has, and what it got rid of."""
    values = load_study(directory)
    findings: dict[str, Finding] = {}
    notes: list[str] = []
    for trial, where in _told_trials(values):
        folder = directory / str(trial.get("run") or f"trial-{trial['number']:04d}")
        if not (folder / RUN_FILE).is_file():
            notes.append(f"trial {trial['number']}: its run is not stored")
            continue
        evidence = run_evidence(folder)
        notes += [f"trial {trial['number']}: {note}" for note in evidence.notes]
        for finding in apply_rules(evidence):
            findings.setdefault(finding.code, replace(finding, where=where))
    for finding in _broken_trials(values):
        findings.setdefault(finding.code, finding)
    if not values.get("best"):
        notes.append("no trial of this study gave a result that counts")
    found = tuple(sorted(findings.values(), key=lambda finding: -finding.severity))
    return Diagnosis(source="study", path=directory, findings=found, notes=tuple(dict.fromkeys(notes)))


def _told_trials(values: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """(trial, where a finding of it is): the best first, then the default."""
    trials = {trial["number"]: trial for trial in values.get("trials") or ()}
    best, default = values.get("best"), values.get("default")
    found = None if best is None else trials.get(best.get("number"))
    if found is not None:
        yield found, f"trial {found['number']}, the best"
    base = next((trial for trial in trials.values() if default and trial.get("params") == default.get("params")), None)
    if base is None or (found is not None and base["number"] == found["number"]):
        return
    params = "" if found is None else " ".join(f"{key}={value}" for key, value in found["params"].items())
    cure = "" if found is None else f"; the best trial ({params}) has it no more"
    yield base, f"trial {base['number']}, the default parameters{cure}"


def _broken_trials(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Trials that ran out of memory left no run to look at, only their reason."""
    broken = [
        trial
        for trial in values.get("trials") or ()
        if trial.get("state") == "FAILED" and "memory" in str(trial.get("reason") or "").lower()
    ]
    if not broken:
        return
    first = broken[0]
    limits = Limits(
        gpu_memory_utilization=first["params"].get("gpu_memory_utilization"),
        max_num_batched_tokens=first["params"].get("max_num_batched_tokens"),
    )
    memory = Memory(out_of_memory=str(first["reason"]), ran_before=True)
    for finding in apply_rules(Evidence(source="study", limits=limits, memory=memory)):
        yield replace(finding, severity=35, where=f"trial {first['number']} and {len(broken) - 1} more")
