"""`workbench analyze`: what a file of requests, or a scenario's workload, tells before anything runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from workbench.scenario.arrivals import RequestFile
from workbench.scenario.document import Document
from workbench.scenario.errors import ScenarioError
from workbench.scenario.overrides import apply_override
from workbench.scenario.problems import describe
from workbench.workload.account import ImportAccount
from workbench.workload.analysis import (
    ArrivalFigures,
    LengthFigures,
    ModelLenFigures,
    Third,
    arrival_figures,
    largest_change,
    length_figures,
    model_len_figures,
    thirds,
)
from workbench.workload.sharing import SharingFigures, sharing_of_trace
from workbench.workload.traces.policies import usable
from workbench.workload.traces.reading import read_requests
from workbench.workload.traces.table import RowProblem, account_of

_LARGE_CHANGE = 0.2
_ENOUGH_FOR_DRIFT = 300
"""Requests; the thirds of fewer differ by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Figures over all requests that could be read, and the columns behind them."""

    path: str
    format: str
    account: ImportAccount
    """Of the file's rows; used are those that a replay would issue under the default policies."""
    used: npt.NDArray[np.bool_]
    """[requests] Which of the columns' requests these are."""
    rows_are: str
    arrival_s: npt.NDArray[np.float64] | None
    """Ascending, s; None without times."""
    input_tokens: npt.NDArray[np.integer[Any]]
    output_tokens: npt.NDArray[np.integer[Any]]
    inputs: LengthFigures | None
    outputs: LengthFigures | None
    totals: LengthFigures | None
    arrivals: ArrivalFigures
    thirds: tuple[Third, ...]
    sharing: SharingFigures | None
    model_len: ModelLenFigures | None
    problems: tuple[RowProblem, ...] = ()
    notes: tuple[str, ...] = ()
    tokenizer: str | None = None
    """What counted the tokens of text; None where the file has counts."""
    fingerprint: str | None = None
    """Of a scenario's workload."""
    file: RequestFile | None = None
    """How the file was read; None for a scenario."""

    def to_json(self) -> dict[str, Any]:
        """The object of `workbench analyze --json`."""
        sharing = self.sharing
        return {
            "path": self.path,
            "format": self.format,
            "rows": {
                "read": self.account.read,
                "used": self.account.used,
                "skipped": self.account.read - self.account.used,
                "reasons": dict(self.account.skipped),
            },
            "rows_are": self.rows_are,
            "requests": len(self.input_tokens),
            "input_tokens": _lengths(self.inputs),
            "output_tokens": _lengths(self.outputs),
            "total_tokens": _lengths(self.totals),
            "arrivals": asdict(self.arrivals),
            "drift": {"thirds": [asdict(part) for part in self.thirds], "largest_change": largest_change(self.thirds)},
            "prefix": {
                "hit_fraction": None if sharing is None else sharing.hit_fraction,
                "block_tokens": None if sharing is None else sharing.block_tokens,
                "by_block_size": {} if sharing is None else sharing.by_block_size,
            },
            "max_model_len": {
                "refused_fraction": {} if self.model_len is None else self.model_len.refused,
                "suggested": None if self.model_len is None else self.model_len.suggested,
            },
            "tokenizer": self.tokenizer,
            "fingerprint": self.fingerprint,
            "warnings": [
                {"kind": problem.kind, "count": problem.count, "lines": list(problem.lines), "action": problem.action}
                for problem in self.problems
            ],
            "notes": list(self.notes),
        }


def _lengths(figures: LengthFigures | None) -> dict[str, Any]:
    names = ("p50", "p90", "p95", "p99", "max", "min", "mean")
    return {name: None if figures is None else getattr(figures, name) for name in names}


def analyze(path: Path, *, tokenizer: str | None = None, overrides: Sequence[str] = ()) -> Analysis:
    """Describe a file of requests, or the workload of a scenario file. Raises `ScenarioError`."""
    if is_scenario(path):
        if tokenizer is not None:
            raise ScenarioError(f"{path}: is a scenario, which names the tokenizer of each file itself")
        from workbench.services.analyze_scenario import analyze_scenario

        return analyze_scenario(path, overrides)
    return analyze_file(_file_spec(path, tokenizer, overrides))


def _file_spec(path: Path, tokenizer: str | None, overrides: Sequence[str]) -> RequestFile:
    """`--set columns.arrival=when` and the like say how to read the file."""
    document = Document(source=str(path), data={"path": str(path), "tokenizer": tokenizer})
    for override in overrides:
        apply_override(document, override)
    try:
        return RequestFile.model_validate(document.data)
    except ValidationError as error:
        raise ScenarioError(*describe(error, document, RequestFile)) from None


def is_scenario(path: Path) -> bool:
    """A YAML document with a workload; by the name only where the file is not there to look at."""
    try:
        with path.open("rb") as stream:
            head = stream.read(1 << 16)
    except (OSError, ValueError):
        return False
    return re.search(rb"^workload\s*:", head, re.MULTILINE) is not None or path.suffix in (".yaml", ".yml")


def analyze_file(file: RequestFile) -> Analysis:
    """Describe every request of a file that can be read; `used` says what a replay would issue."""
    read = read_requests(file)
    ledger, table = read.ledger.copy(), read.table
    keep = usable(table, file, ledger)
    times = table.arrival_s if table.has_times and len(table) else None
    parts = thirds(times, table.input_tokens, table.output_tokens)
    change = largest_change(parts)
    notes = list(ledger.notes)
    sharing = sharing_of_trace(table)
    if sharing is not None and sharing.num_requests < len(table):
        notes.append(f"prefix sharing of the first {sharing.num_requests} requests only")
    if ledger.num_read == 0:
        notes.append("the file has no rows below its header")
    if change is not None and change > _LARGE_CHANGE and len(table) >= _ENOUGH_FOR_DRIFT:
        notes.append(f"not steady: rate or mean lengths differ by up to {change:.0%} between thirds of the file")
    return Analysis(
        path=str(file.path),
        format=read.format,
        account=account_of(ledger.num_read, table.num_rows(keep), ledger.problems()),
        used=keep,
        rows_are=table.rows_are,
        arrival_s=times,
        input_tokens=table.input_tokens,
        output_tokens=table.output_tokens,
        inputs=length_figures(table.input_tokens),
        outputs=length_figures(table.output_tokens),
        totals=length_figures(table.input_tokens, table.output_tokens),
        arrivals=ArrivalFigures() if times is None else arrival_figures(times, read.head_s),
        thirds=parts,
        sharing=sharing,
        model_len=model_len_figures(table.input_tokens, table.output_tokens),
        problems=ledger.problems(),
        notes=tuple(notes),
        tokenizer=None if table.tokens is None else table.tokens.tokenizer,
        file=file,
    )
