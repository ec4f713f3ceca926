"""A ready scenario for a file of requests: replays it on a simulated GPU whose model takes its lengths."""

from __future__ import annotations

import os
import re
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from workbench.scenario import ScenarioError, parse_scenario
from workbench.scenario.arrivals import RequestFile
from workbench.services.analyze import Analysis

_MODELS = (("Qwen/Qwen2.5-7B-Instruct", 32_768), ("meta-llama/Llama-3.1-8B", 131_072))
"""Catalogue models and the longest window of each."""
_FIRST_REQUESTS = 2_000
"""Enough for stable percentiles, few enough to be simulated in seconds."""


def write_fitted_scenario(analysis: Analysis, path: Path) -> Path:
    """Write `path`, a scenario that replays the file. Raises `ScenarioError` for a scenario in place of a file of
    requests, and where nothing can be used."""
    file = analysis.file
    if file is None:
        raise ScenarioError(f"{analysis.path}: is a scenario already; --write makes one of a file of requests")
    if analysis.account.used == 0 or analysis.model_len is None:
        raise ScenarioError(f"{file.path}: has no request that can be used, so no scenario can be fitted")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _header(analysis) + _dumped(_scenario(analysis, file, path.parent))
    parse_scenario(text, source=str(path), directory=path.parent)
    path.write_text(text, encoding="utf-8")
    return path


def _scenario(analysis: Analysis, file: RequestFile, directory: Path) -> dict[str, Any]:
    assert analysis.model_len is not None
    wanted = analysis.model_len.suggested
    model, longest = next((pair for pair in _MODELS if pair[1] >= wanted), _MODELS[-1])
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.path.stem).strip("-.") or "trace"
    return {
        "name": name[:80],
        "description": f"Fitted to {file.path.name} ({analysis.format}, {len(analysis.input_tokens)} requests).",
        "seed": 1,
        "model": model,
        "engine": {"max_model_len": min(wanted, longest)},
        "target": {"kind": "simulated", "gpu": "a100-80g-sxm"},
        "workload": _workload(analysis, file, directory),
        "slo": {"ttft_p95": "2s", "tpot_p95": "50ms"},
        "search": {
            "trials": 16,
            "objective": "goodput_rps",
            "space": {
                "max_num_seqs": {"low": 16, "high": 256, "log": True},
                "max_num_batched_tokens": {"low": 1024, "high": 16384, "log": True},
            },
        },
    }


def _shown_path(file: Path, directory: Path) -> str:
    """Relative to the scenario where both can move together, absolute otherwise."""
    relative = os.path.relpath(file.resolve(), directory.resolve())
    return str(file.resolve()) if relative.startswith(os.path.join("..", "..", "..")) else relative


def _workload(analysis: Analysis, file: RequestFile, directory: Path) -> dict[str, Any]:
    num_requests = min(len(analysis.input_tokens), _FIRST_REQUESTS)
    source = file.model_dump(mode="json", exclude_defaults=True)
    source |= {"path": _shown_path(file.path, directory), "format": analysis.format}
    if analysis.arrivals.span_s is not None:
        arrivals = {"kind": "trace", **source}
        return {"over_long": "drop", "num_requests": num_requests, "arrivals": arrivals}
    is_offline = analysis.format == "openai-batch" or analysis.arrival_s is not None
    return {
        "over_long": "drop",
        "num_requests": num_requests,
        "arrivals": {"kind": "all_at_once"} if is_offline else {"kind": "poisson", "rate": 1.0},
        "classes": [{"name": "file", "file": source}],
    }


def _header(analysis: Analysis) -> str:
    lines = [f"Fitted to {Path(analysis.path).name}; check the model, the GPU and the SLO before you rely on it."]
    if len(analysis.input_tokens) > _FIRST_REQUESTS:
        lines.append(f"num_requests keeps the first {_FIRST_REQUESTS} requests; remove it to replay all.")
    if analysis.arrivals.span_s is None:
        lines.append("The file has no arrival times: the arrivals are an assumption.")
    elif analysis.arrivals.rate_per_s and analysis.arrivals.cv:
        burstiness = min(max(analysis.arrivals.cv**-2, 0.001), 1000.0)
        lines.append("To generate such a load instead of replaying it:")
        lines.append(
            f"  arrivals: {{kind: gamma, rate: {analysis.arrivals.rate_per_s:.4g}, burstiness: {burstiness:.4g}}}"
        )
        for side, figures in (("input", analysis.inputs), ("output", analysis.outputs)):
            if figures is not None and figures.p50 >= 1:
                points = ", ".join(f"{p}: {max(getattr(figures, p), 1):.0f}" for p in ("p50", "p90", "p99"))
                lines.append(f"  {side}_tokens: {{percentiles: {{{points}}}, max: {max(figures.max, 1)}}}")
    return "".join(f"# {line}\n" for line in lines)


def _dumped(scenario: dict[str, Any]) -> str:
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 120
    stream = StringIO()
    yaml.dump(scenario, stream)
    return stream.getvalue()
