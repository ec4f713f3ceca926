"""The command that starts a server with one configuration: a scenario's `launch` with its braces filled in."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from engine.config import EngineConfig
from engine.errors import ConfigError
from workbench.capacity.deployment import DeploymentPlan, Pool
from workbench.loadgen.endpoint_probe import base_url
from workbench.report.export.command import arguments
from workbench.report.export.facts import PoolFacts
from workbench.report.export.vllm_options import list_versions
from workbench.scenario import Scenario
from workbench.scenario.target import LAUNCH_FIELDS, LAUNCH_PLACEHOLDER, NAMED_ONLY, EndpointTarget
from workbench.services.export import vllm_options


def launch_command(scenario: Scenario, spec: EndpointTarget, params: Mapping[str, Any]) -> tuple[list[str], str]:
    """(words, address of the server). Raises `ConfigError` for a configuration that the command cannot express."""
    check_launch(spec)
    url = base_url(spec.url) if spec.url else ""
    port = _port_of(url) if url else _free_port()
    # The engine has a kv_cache_dtype too; fp8 is what only a device has.
    device = {
        name: params[name]
        for name in LAUNCH_FIELDS
        if name in params and (name != "kv_cache_dtype" or params[name] == "fp8")
    }
    engine = {**scenario.engine, **{name: value for name, value in params.items() if name not in device}}
    values = {**EngineConfig.from_dict({"model": scenario.model, **engine}).to_dict(), **device}

    def filled(word: str) -> list[str]:
        if word == "{options}":
            return _options(scenario.model, engine, device, params)
        if word == "{settings}":
            return [
                part
                for name, value in engine.items()
                if name != "model"
                for part in ("--set", f"{name}={_plain(value)}")
            ]
        return [re.sub(LAUNCH_PLACEHOLDER, lambda found: _named(found[1]), word)]

    def _named(name: str) -> str:
        if name in ("options", "settings"):
            text = filled(f"{{{name}}}")
            return shlex.join(text)
        if name in ("model", "port"):
            return str(values["model"] if name == "model" else port)
        default = 1 if name in ("tensor_parallel_size", "replicas") else None
        return _plain(values.get(name, default))

    words = [part for word in shlex.split(spec.launch or "") for part in filled(word)]
    return words, url or f"http://127.0.0.1:{port}"


def check_launch(spec: EndpointTarget) -> None:
    """Raise `ConfigError` for a command that is not on this machine: known before a search that ends with it."""
    program = shlex.split(spec.launch or "")[:1]
    if program and "{" not in program[0] and shutil.which(program[0]) is None:
        raise ConfigError(
            f"target.launch: {program[0]!r} is not a command on this machine. Install it or give its path"
        )


def _options(model: str, engine: Mapping[str, Any], device: Mapping[str, Any], params: Mapping[str, Any]) -> list[str]:
    known = {name: value for name, value in device.items() if name not in NAMED_ONLY}
    plan = DeploymentPlan.model_validate({"model": model, "engine": dict(engine), **known})
    warnings: list[str] = []
    pool = Pool(name="main")
    options = tuple(vllm_options(plan, pool, list_versions()[-1], {}, warnings))
    for warning in warnings:
        if warning.partition(" ")[0] in params:
            raise ConfigError(f"target.launch: {{options}} cannot pass it to vLLM: {warning}. Do not search it")
    return arguments(PoolFacts(name=pool.name, options=options, replicas=1, max_replicas=1))


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _port_of(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
