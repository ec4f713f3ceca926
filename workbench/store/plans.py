"""The plan on disk: what `workbench export` deploys, and the scenario that simulates it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from workbench.scenario import ScenarioError
from workbench.store.atomic import write_text


def write_plan(path: Path, document: Mapping[str, Any]) -> None:
    """Write a plan's document, whole or not at all. Raises `OSError`."""
    yaml = YAML()
    yaml.default_flow_style = False
    stream = io.StringIO()
    yaml.dump(json.loads(json.dumps(document, default=str)), stream)
    write_text(path, stream.getvalue())


def read_plan(path: Path, sections: Sequence[str]) -> dict[str, Any]:
    """The document, with at least these sections. Raises `ScenarioError` for what is no plan."""
    try:
        value = YAML(typ="safe").load(path.read_text(encoding="utf-8"))  # JSON is YAML too
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read as YAML or JSON ({str(error).splitlines()[0]})") from None
    document: dict[str, Any] = value if isinstance(value, dict) else {}
    for name in sections:
        if name not in document:
            raise ScenarioError(
                f"{path}: is no plan: it has no section {name!r}. `workbench plan --write` makes one; see "
                "docs/capacity.md"
            )
    return document
