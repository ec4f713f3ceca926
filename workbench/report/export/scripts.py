"""Formats for one server: start script, vLLM's YAML, environment file."""

from __future__ import annotations

import io
import shlex

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from workbench.report.export.command import arguments, comments, plain, quoted, scaling_rule
from workbench.report.export.facts import DeploymentFacts, PoolFacts
from workbench.report.export.nginx import nginx_config

_READY_S = 1800


def shell_script(facts: DeploymentFacts, pool: PoolFacts) -> str:
    """Starts `vllm serve`, says when it is ready, and stops it with the script."""
    words = "\n".join(f"  {line}" for line in _lines(arguments(pool)))
    return (
        "#!/usr/bin/env bash\n"
        + comments([*facts.provenance, "", scaling_rule(facts), *_router_note(facts)])
        + "set -euo pipefail\n\n"
        + f"MODEL=${{MODEL:-{shlex.quote(facts.model)}}}\n"
        + f"PORT=${{PORT:-{facts.port}}}\n"
        + f"args=(\n{words}\n)\n\n"
        + 'vllm serve "$MODEL" --port "$PORT" "${args[@]}" "$@" &\n'
        + "server=$!\n"
        + "trap 'kill \"$server\" 2>/dev/null || true' EXIT INT TERM\n\n"
        + "# Readiness: the first answer of /health; weights and CUDA graphs take minutes.\n"
        + "is_ready=\n"
        + f"for ((second = 0; second < {_READY_S}; second += 5)); do\n"
        + '  if curl -fsS --max-time 5 "http://127.0.0.1:$PORT/health" >/dev/null 2>&1; then\n'
        + '    echo "ready: $MODEL on port $PORT after $second s" >&2\n'
        + "    is_ready=yes\n"
        + "    break\n"
        + "  fi\n"
        + '  kill -0 "$server" 2>/dev/null || { echo "vllm ended before it was ready" >&2; exit 1; }\n'
        + "  sleep 5\n"
        + "done\n"
        + f'[[ $is_ready ]] || echo "not ready after {_READY_S} s: see the log above" >&2\n'
        + 'wait "$server"\n'
    )


def _lines(words: list[str]) -> list[str]:
    """An option and its value on a line."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines


def vllm_yaml(facts: DeploymentFacts, pool: PoolFacts) -> str:
    """For `vllm serve --config FILE`."""
    values: dict[str, object] = {"model": facts.model, "port": facts.port, **dict(pool.options)}
    head = comments(
        [
            *facts.provenance,
            "",
            "Start: vllm serve --config THIS_FILE",
            f"Readiness: GET /health on port {facts.port} answers 200, probed every 15 s.",
            scaling_rule(facts),
            *_router_note(facts),
        ]
    )
    return head + dump_yaml(values)


def env_file(facts: DeploymentFacts, pool: PoolFacts) -> str:
    """For `docker run --env-file` or a unit file: one variable per option, and all of them as VLLM_ARGS."""
    head = comments(
        [
            *facts.provenance,
            "",
            "Start: vllm serve $MODEL --port $PORT $VLLM_ARGS",
            f"Readiness: GET /health on port {facts.port} answers 200, probed every 15 s.",
            scaling_rule(facts),
            *_router_note(facts),
        ]
    )
    lines = [f"MODEL={facts.model}", f"PORT={facts.port}", f"VLLM_ARGS={quoted(arguments(pool))}"]
    lines += [f"VLLM_OPTION_{name.upper().replace('-', '_')}={plain(value)}" for name, value in pool.options]
    lines += [
        f"SCALE_AT_WAITING={facts.scale_at_waiting}",
        f"REPLICAS={pool.replicas}",
        f"MAX_REPLICAS={pool.max_replicas}",
    ]
    return head + "\n".join(lines) + "\n"


def dump_yaml(value: object) -> str:
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 4096
    yaml.representer.ignore_aliases = lambda *_: True
    stream = io.StringIO()
    yaml.dump(_blocks(value), stream)
    return stream.getvalue()


def _blocks(value: object) -> object:
    """Texts of several lines as literal blocks."""
    if isinstance(value, dict):
        return {key: _blocks(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_blocks(item) for item in value]
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value


def _router_note(facts: DeploymentFacts) -> list[str]:
    if facts.router is None:
        return []

    def hosts(pool: PoolFacts) -> list[str]:
        return [f"{facts.name}-{pool.name}-{number}" for number in range(1, pool.replicas + 1)]

    config = nginx_config(facts, facts.router, hosts)
    return ["", "Router (nginx.conf); put the replicas' addresses in:", *config.splitlines()]
