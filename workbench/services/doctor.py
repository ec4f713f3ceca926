"""`workbench doctor`: reads what it is pointed at, and lets the rules speak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.capacity.diagnosis import Finding
from workbench.capacity.diagnosis.metrics_dump import is_metrics_dump, read_metrics_dumps
from workbench.capacity.diagnosis.vllm_log import is_vllm_log, read_vllm_log
from workbench.scenario import ScenarioError
from workbench.services.doctor_remedies import find_causes
from workbench.services.doctor_run import DoctorInput, read_run
from workbench.services.doctor_study import diagnose_study
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
        return _from(found, read_run(found))
    if (found / STUDY_FILE).is_file():
        told = diagnose_study(found, load_study(found))
        return Diagnosis(source="study", path=found, findings=told.findings, notes=told.notes)
    texts = [_read(file) for file in _files(found)]
    if any(is_metrics_dump(text) for text in texts):
        try:
            dumps = read_metrics_dumps(text for text in texts if is_metrics_dump(text))
            return _from(found, DoctorInput(evidence=dumps, replayer=None))
        except ValueError as error:
            raise ScenarioError(f"{path}: is not in the Prometheus text format ({error})") from None
    text = "\n".join(texts)
    if is_vllm_log(text):
        return _from(found, DoctorInput(evidence=read_vllm_log(text), replayer=None))
    raise ScenarioError(
        f"{path}: is neither a run, a study, a vLLM log nor a metrics dump. Give a folder with {RUN_FILE} or "
        f"{STUDY_FILE}, the server's output, or what GET /metrics answers"
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


def _from(path: Path, given: DoctorInput) -> Diagnosis:
    evidence = given.evidence
    return Diagnosis(
        source=evidence.source, path=path, findings=find_causes(given.evidence, given.replayer), notes=evidence.notes
    )
