"""`workbench init`: a scenario to start from."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from engine.catalog import find_gpu
from workbench.scenario import ScenarioError
from workbench.scenario.loader import parse_scenario
from workbench.services.targets import check_target


def write_scenario(path: Path, *, model: str, gpu: str) -> None:
    """Write a commented scenario that validates and runs.

    Raises `ScenarioError` where the file exists, `ConfigError` for a model or GPU that does not fit, `OSError`.
    """
    if path.exists():
        raise ScenarioError(f"{path}: exists already. Choose another name, or remove it first")
    if path.suffix not in (".yaml", ".yml"):
        raise ScenarioError(f"{path}: a scenario is a YAML file. Name it {path.name}.yaml")
    template = (resources.files("workbench.scenario") / "template.yaml").read_text(encoding="utf-8")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).strip("-.") or "scenario"
    text = template.format(name=name, model=model, gpu=find_gpu(gpu).id)
    check_target(parse_scenario(text, source=str(path)), {})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as stream:
        stream.write(text)
