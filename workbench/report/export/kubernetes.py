"""Kubernetes manifests: a Deployment, a Service and a HorizontalPodAutoscaler per pool, a router where planned.

The autoscaler is the core API's (autoscaling/v2) on a metric of the pods rather than KEDA's ScaledObject: it needs one
rule of the Prometheus adapter, which is written as a ConfigMap, and no operator of its own; its manifest can be checked
against the published schema.
"""

from __future__ import annotations

from typing import Any

from workbench.report.export.command import arguments, comments, scaling_rule
from workbench.report.export.facts import MODEL_FOLDER, DeploymentFacts, PoolFacts, RouterFacts
from workbench.report.export.gpu_products import PRODUCT_LABEL, find_product
from workbench.report.export.nginx import nginx_config
from workbench.report.export.scripts import dump_yaml

_NGINX_IMAGE = "nginx:1.28"
_RESOLVER = "kube-dns.kube-system.svc.cluster.local"
_METRIC = "vllm_num_requests_waiting"


def kubernetes_manifests(facts: DeploymentFacts) -> str:
    """Several YAML documents in one text."""
    documents: list[dict[str, Any]] = []
    for pool in facts.pools:
        documents += [_deployment(facts, pool), _service(facts, pool), _autoscaler(facts, pool)]
    documents.append(_adapter_rule(facts))
    if facts.router is not None or len(facts.pools) > 1:
        router = facts.router or RouterFacts(routing="round_robin", header="X-Prefix-Key")
        documents += _router(facts, router)
    for document in documents:
        document["metadata"]["namespace"] = facts.namespace
    notes = [
        *facts.provenance,
        "",
        scaling_rule(facts),
        "Readiness asks /health only: were it the queue, all replicas would leave the service together under overload.",
    ]
    return comments(notes) + "---\n".join(dump_yaml(document) for document in documents)


def _name(facts: DeploymentFacts, pool: PoolFacts) -> str:
    return facts.name if len(facts.pools) == 1 else f"{facts.name}-{pool.name}"


def _labels(facts: DeploymentFacts, pool: PoolFacts) -> dict[str, str]:
    return {"app.kubernetes.io/name": facts.name, "app.kubernetes.io/component": pool.name}


def _deployment(facts: DeploymentFacts, pool: PoolFacts) -> dict[str, Any]:
    labels = _labels(facts, pool)
    pod: dict[str, Any] = {
        "containers": [_container(facts, pool)],
        "terminationGracePeriodSeconds": 120,
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            {"name": "models", "emptyDir": {}},
        ],
    }
    product = find_product(facts.gpu)
    if product is not None:
        pod["nodeSelector"] = {PRODUCT_LABEL: product}
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(facts.port),
        "prometheus.io/path": "/metrics",
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _name(facts, pool), "labels": labels},
        "spec": {
            "replicas": pool.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }


def _container(facts: DeploymentFacts, pool: PoolFacts) -> dict[str, Any]:
    health = {"httpGet": {"path": "/health", "port": "http"}}
    token = {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}
    return {
        "name": "vllm",
        "image": facts.image,
        "args": ["--model", facts.model, "--port", str(facts.port), *arguments(pool)],
        "env": [{"name": "HF_TOKEN", "valueFrom": token}, {"name": "HF_HOME", "value": MODEL_FOLDER}],
        "ports": [{"name": "http", "containerPort": facts.port}],
        "resources": {"limits": {"nvidia.com/gpu": str(facts.gpus_per_replica)}},
        "startupProbe": {**health, "periodSeconds": 15, "failureThreshold": 120},
        "readinessProbe": {**health, "periodSeconds": 15, "timeoutSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**health, "periodSeconds": 15, "timeoutSeconds": 10, "failureThreshold": 8},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "models", "mountPath": MODEL_FOLDER},
        ],
    }


def _service(facts: DeploymentFacts, pool: PoolFacts) -> dict[str, Any]:
    port = {"name": "http", "port": facts.port, "targetPort": "http"}
    spec: dict[str, Any] = {"selector": _labels(facts, pool), "ports": [port]}
    if facts.router is not None:
        spec["clusterIP"] = "None"  # the router must see each replica
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _name(facts, pool), "labels": _labels(facts, pool)},
        "spec": spec,
    }


def _autoscaler(facts: DeploymentFacts, pool: PoolFacts) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": str(facts.scale_at_waiting)}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": _name(facts, pool), "labels": _labels(facts, pool)},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": _name(facts, pool)},
            "minReplicas": pool.replicas,
            "maxReplicas": pool.max_replicas,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": _METRIC}, "target": target}}],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 10, "policies": [_policy(1, 60)]},
                "scaleDown": {"stabilizationWindowSeconds": 600, "policies": [_policy(1, 300)]},
            },
        },
    }


def _policy(pods: int, period_s: int) -> dict[str, Any]:
    return {"type": "Pods", "value": pods, "periodSeconds": period_s}


def _adapter_rule(facts: DeploymentFacts) -> dict[str, Any]:
    """Names in the custom metrics API have no colon."""
    rule = {
        "rules": [
            {
                "seriesQuery": 'vllm:num_requests_waiting{namespace!="",pod!=""}',
                "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
                "name": {"matches": "vllm:num_requests_waiting", "as": _METRIC},
                "metricsQuery": "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
            }
        ]
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{facts.name}-prometheus-adapter-rule"},
        "data": {"config.yaml": dump_yaml(rule)},
    }


def _router(facts: DeploymentFacts, router: RouterFacts) -> list[dict[str, Any]]:
    name = f"{facts.name}-router"
    labels = {"app.kubernetes.io/name": name}
    domain = f"{facts.namespace}.svc.cluster.local"  # nginx's resolver knows no search domains
    config = nginx_config(facts, router, lambda pool: [f"{_name(facts, pool)}.{domain}"], resolver=_RESOLVER)
    container = {
        "name": "nginx",
        "image": _NGINX_IMAGE,
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/router/health", "port": "http"}, "periodSeconds": 15},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/nginx/nginx.conf", "subPath": "nginx.conf"}],
    }
    pod = {"containers": [container], "volumes": [{"name": "config", "configMap": {"name": name}}]}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"nginx.conf": config}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": labels},
            "spec": {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
        },
    ]
