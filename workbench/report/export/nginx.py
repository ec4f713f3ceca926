"""A router for nginx: rate limit, queue limit, pools by prompt length, prefix hash."""

from __future__ import annotations

import json
from collections.abc import Callable

from workbench.report.export.facts import DeploymentFacts, PoolFacts, RouterFacts

_BYTES_PER_TOKEN = 4
"""Of English text in JSON; the split by length is as rough as this."""
_METHODS = {
    "random": "random;",
    "round_robin": "",
    "least_loaded": "least_conn;",
    "least_kv": "least_conn;",
    "prefix_hash": "hash $prefix_key consistent;",
}


def nginx_config(
    facts: DeploymentFacts,
    router: RouterFacts,
    hosts: Callable[[PoolFacts], list[str]],
    *,
    resolver: str | None = None,
) -> str:
    """A whole `nginx.conf`; `hosts` gives the addresses of a pool's replicas, `resolver` a name server that is asked
    again and again which they are (replicas come and go)."""
    body = [f"resolver {resolver} valid=10s;"] if resolver else []
    body += [*_limits(router), *_pool_choice(facts), *_prefix_key(router)]
    for pool in facts.pools:
        body += _upstream(pool, router, hosts(pool), facts.port, is_resolved=resolver is not None)
    body += _server(facts, router)
    # A long prompt stays in memory instead of going through a file.
    body = ["client_max_body_size 64m;", "client_body_buffer_size 1m;", *body]
    inner = "\n".join(f"    {line}" if line else "" for line in body)
    return f"events {{ worker_connections 4096; }}\nhttp {{\n{inner}\n}}\n"


def _limits(router: RouterFacts) -> list[str]:
    lines = []
    if router.requests_per_s is not None:
        key = "$binary_remote_addr" if router.per_client else "$server_name"
        lines.append(f"limit_req_zone {key} zone=rate:10m rate={_rate(router.requests_per_s)};")
    if router.max_in_flight is not None:
        lines.append("limit_conn_zone $server_name zone=in_flight:1m;")  # an empty key would not be counted
    return lines


def _prefix_key(router: RouterFacts) -> list[str]:
    """Requests without the header are spread evenly instead of all meeting at one replica."""
    if router.routing != "prefix_hash":
        return []
    header = f"$http_{router.header.lower().replace('-', '_')}"
    return [
        f"# Clients send {router.header}: a hash or name of the fixed part of their prompt.",
        f"map {header} $prefix_key {{",
        f"    default {header};",
        '    "" $request_id;',
        "}",
    ]


def _rate(per_s: float) -> str:
    """nginx takes whole numbers only: per second, or per minute where that is finer."""
    return f"{per_s:.0f}r/s" if per_s >= 1 and float(per_s).is_integer() else f"{max(1, round(per_s * 60))}r/m"


def _pool_choice(facts: DeploymentFacts) -> list[str]:
    """A map from the request's size to a pool; nginx compares text, so that sizes become patterns."""
    if len(facts.pools) < 2:
        return []
    limited = sorted(
        (pool for pool in facts.pools if pool.max_prompt_tokens is not None),
        key=lambda pool: pool.max_prompt_tokens or 0,
    )
    rest = next(pool for pool in facts.pools if pool.max_prompt_tokens is None)
    lines = [
        f"# Prompts are told apart by size: about {_BYTES_PER_TOKEN} bytes a token.",
        "map $content_length $pool {",
    ]
    lines.append(f"    default {limited[0].name};")
    above = [*limited[1:], rest]
    for pool, below in sorted(zip(above, limited, strict=True), key=lambda pair: -(pair[1].max_prompt_tokens or 0)):
        size = (below.max_prompt_tokens or 0) * _BYTES_PER_TOKEN + 1
        lines.append(f'    "~{at_least(size)}" {pool.name};')
    return [*lines, "}"]


def at_least(number: int) -> str:
    """A regular expression for the decimal numbers of at least `number`, without leading zeros."""
    digits = str(number)
    choices = [digits]
    for position, digit in enumerate(digits):
        if digit != "9":
            rest = len(digits) - position - 1
            choices.append(f"{digits[:position]}[{int(digit) + 1}-9]" + (f"[0-9]{{{rest}}}" if rest else ""))
    choices.append(f"[1-9][0-9]{{{len(digits)},}}")
    return f"^({'|'.join(choices)})$"


def _upstream(pool: PoolFacts, router: RouterFacts, hosts: list[str], port: int, *, is_resolved: bool) -> list[str]:
    method = _METHODS[router.routing]
    resolve = " resolve" if is_resolved else ""
    servers = [f"    server {host}:{port} max_fails=2 fail_timeout=15s{resolve};" for host in hosts]
    return [
        f"upstream {pool.name} {{",
        f"    zone {pool.name} 64k;",
        *([f"    {method}"] if method else []),
        *servers,
        "    keepalive 64;",
        "}",
    ]


def _server(facts: DeploymentFacts, router: RouterFacts) -> list[str]:
    target = "$pool" if len(facts.pools) > 1 else facts.pools[0].name
    lines = [
        "server {",
        "    listen 8080;",
        "    server_name llm;",
        "    location = /router/health { return 200; }",
        "    location / {",
    ]
    if router.requests_per_s is not None:
        burst = f" burst={router.burst} nodelay" if router.burst else ""
        lines += [f"        limit_req zone=rate{burst};", "        limit_req_status 429;"]
    if router.max_in_flight is not None:
        lines += [f"        limit_conn in_flight {router.max_in_flight};", "        limit_conn_status 429;"]
    return [
        *lines,
        f"        proxy_pass http://{target};",
        "        proxy_http_version 1.1;",
        '        proxy_set_header Connection "";',
        "        proxy_set_header Host $host;",
        "        proxy_buffering off;  # tokens are streamed",
        "        proxy_read_timeout 600s;",
        "    }",
        *(_refusal() if router.requests_per_s is not None or router.max_in_flight is not None else []),
        "}",
    ]


def _refusal() -> list[str]:
    """429 as OpenAI's clients read errors, and try again."""
    error = {"message": "too many requests, try again later", "type": "rate_limit_error", "code": 429}
    return [
        "    error_page 429 @refused;",
        "    location @refused {",
        "        default_type application/json;",
        "        add_header Retry-After 1 always;",
        f"        return 429 '{json.dumps({'error': error})}';",
        "    }",
    ]
