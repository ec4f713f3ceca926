"""`workbench doctor`: reads what it is pointed at, and lets the rules speak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.capacity.diagnosis import Evidence, Finding, apply_rules
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
    findings: list[Finding] = []
    notes: list[str] = []
    seen: set[str] = set()
    for name, where, number, params in _trials(values):
        folder = directory / f"trial-{number:04d}"
        if not (folder / RUN_FILE).is_file():
            notes.append(f"{name}: its run is not stored")
            continue
        evidence = run_evidence(folder)
        notes += [f"{name}: {note}" for note in evidence.notes]
        for finding in apply_rules(evidence):
            if finding.code not in seen:
                seen.add(finding.code)
                findings.append(replace(finding, where=where.format(params=params)))
    findings.sort(key=lambda finding: -finding.severity)
    if not seen and not findings and not any(_trials(values)):
        notes.append("no trial of this study completed")
    return Diagnosis(source="study", path=directory, findings=tuple(findings), notes=tuple(dict.fromkeys(notes)))


def _trials(values: dict[str, Any]) -> Iterator[tuple[str, str, int, str]]:
    """(name, where a finding of it is, number, the best's parameters), the best first."""
    best, default = values.get("best"), values.get("default")
    params = " ".join(f"{key}={value}" for key, value in ((best or {}).get("params") or {}).items())
    if best is not None and best.get("number") is not None:
        yield f"trial {best['number']}", f"trial {best['number']} (the best)", int(best["number"]), params
    if default is not None and default.get("number") is not None and default != best:
        cured = "the default parameters; the best trial ({params}) has it no more" if best else "the default parameters"
        yield f"trial {default['number']}", cured, int(default["number"]), params
