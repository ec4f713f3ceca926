"""The OpenAI-compatible server over the embedded engine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError


def serve(
    *,
    model: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: Sequence[str] = (),
    served_model_name: str | None = None,
) -> None:
    """Serve until Ctrl-C; `settings` are engine parameters as `name=value`. One line on stderr says when it is ready.

    Raises `engine.errors.ConfigError` or `engine.errors.ModelLoadError` for what cannot be served.
    """
    config = EngineConfig.from_dict({"model": model, **parse_settings(settings)})
    try:
        from engine.server.run import serve as run_server
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serve: needs the package {error.name}. Run: pip install 'llm-serving-workbench[server]'"
        ) from error

    try:
        run_server(config, host=host, port=port, served_name=served_model_name, on_ready=_announce)
    except KeyboardInterrupt:  # the way to stop it, not a failure
        return


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """`["block_size=8"]` -> `{"block_size": 8}`, values as in a scenario. Raises `ConfigError`."""
    from workbench.scenario import ScenarioError
    from workbench.scenario.document import read_value

    values: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {text}: must look like name=value, for example block_size=8")
        try:
            values[name.strip().removeprefix("engine.")] = read_value(value, f"--set {text}")
        except ScenarioError as error:
            raise ConfigError(str(error)) from error
    return values


def _announce(name: str, url: str) -> None:
    sys.stderr.write(f"serving {name} on {url}\n")
    sys.stderr.flush()
