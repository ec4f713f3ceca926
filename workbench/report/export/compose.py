"""Docker Compose: replicas with GPUs and health checks, a router where the plan calls for one."""

from __future__ import annotations

from typing import Any

from workbench.report.export.command import arguments, comments, scaling_rule
from workbench.report.export.facts import MODEL_FOLDER, DeploymentFacts, PoolFacts
from workbench.report.export.nginx import nginx_config
from workbench.report.export.scripts import dump_yaml

_NGINX_IMAGE = "nginx:1.28"
_PROBE = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/health', timeout=5)"


def compose_file(facts: DeploymentFacts) -> str:
    """Replicas are services of their own: each has its GPUs, and the router names them."""
    services: dict[str, Any] = {}
    first_gpu = 0
    for pool in facts.pools:
        for name in _hosts(facts, pool):
            services[name] = _service(facts, pool, first_gpu)
            first_gpu += facts.gpus_per_replica
    document: dict[str, Any] = {"name": facts.name, "services": services}
    router = facts.router
    if router is None and len(services) == 1:
        services[next(iter(services))]["ports"] = [f"{facts.port}:{facts.port}"]
    else:
        from workbench.report.export.facts import RouterFacts

        router = router or RouterFacts(routing="round_robin", header="X-Prefix-Key")
        services["router"] = _router(facts, list(services))
        config = nginx_config(facts, router, lambda pool: _hosts(facts, pool))
        document["configs"] = {"router": {"content": config.replace("$", "$$")}}  # $ is Compose's own
    if len(services) == 1:
        only = next(iter(services.values()))
        only["deploy"] = _gpus({"count": facts.gpus_per_replica})  # whichever are free: no other service takes any
    document["volumes"] = {"models": {}}
    scaling = "Compose does not scale by itself: watch vllm:num_requests_waiting and add services."
    return comments([*facts.provenance, "", scaling_rule(facts), scaling]) + dump_yaml(document)


def _hosts(facts: DeploymentFacts, pool: PoolFacts) -> list[str]:
    return [f"{pool.name}-{number}" for number in range(1, pool.replicas + 1)]


def _service(facts: DeploymentFacts, pool: PoolFacts, first_gpu: int) -> dict[str, Any]:
    gpus = [str(first_gpu + number) for number in range(facts.gpus_per_replica)]
    return {
        "image": facts.image,
        "command": ["--model", facts.model, "--port", str(facts.port), *arguments(pool)],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", "HF_HOME": MODEL_FOLDER},
        "ipc": "host",
        "volumes": [f"models:{MODEL_FOLDER}"],
        "deploy": _gpus({"device_ids": gpus}),
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _PROBE.format(port=facts.port)],
            "interval": "15s",
            "timeout": "10s",
            "retries": 2,
            "start_period": "30m",
        },
        "restart": "unless-stopped",
    }


def _gpus(which: dict[str, Any]) -> dict[str, Any]:
    device = {"driver": "nvidia", **which, "capabilities": ["gpu"]}
    return {"resources": {"reservations": {"devices": [device]}}}


def _router(facts: DeploymentFacts, backends: list[str]) -> dict[str, Any]:
    return {
        "image": _NGINX_IMAGE,
        "ports": [f"{facts.port}:8080"],
        "configs": [{"source": "router", "target": "/etc/nginx/nginx.conf"}],
        "depends_on": {name: {"condition": "service_healthy"} for name in backends},
        "restart": "unless-stopped",
    }
