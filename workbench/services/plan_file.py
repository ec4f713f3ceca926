"""The plan on disk: what `workbench export` deploys, and the scenario that simulates it."""

from __future__ import annotations

import io
import json
from pathlib import Path

from ruamel.yaml import YAML

from workbench.services.plan import Plan
from workbench.store.atomic import write_text


def write_plan(path: Path, plan: Plan) -> None:
    """Whole or not at all. Raises `OSError`."""
    yaml = YAML()
    yaml.default_flow_style = False
    stream = io.StringIO()
    yaml.dump(json.loads(json.dumps(plan.to_document(), default=str)), stream)
    write_text(path, stream.getvalue())
