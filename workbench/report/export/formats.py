"""The formats by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workbench.report.export.compose import compose_file
from workbench.report.export.facts import DeploymentFacts, PoolFacts
from workbench.report.export.kubernetes import kubernetes_manifests
from workbench.report.export.scripts import env_file, shell_script, vllm_yaml

_Whole = Callable[[DeploymentFacts], str]
_One = Callable[[DeploymentFacts, PoolFacts], str]

_WHOLE: Mapping[str, _Whole] = {"compose": compose_file, "k8s": kubernetes_manifests}
_ONE: Mapping[str, _One] = {"vllm-args": shell_script, "vllm-yaml": vllm_yaml, "env": env_file}
FORMATS = ("vllm-args", "vllm-yaml", "compose", "k8s", "env")


def render(format_name: str, facts: DeploymentFacts, pool: str | None = None) -> str:
    """The file's text. `pool` chooses among several where the format starts one server (default: the first).

    Raises `KeyError` for an unknown format or pool.
    """
    if format_name in _WHOLE:
        return _WHOLE[format_name](facts)
    by_name = {item.name: item for item in facts.pools}
    return _ONE[format_name](facts, facts.pools[0] if pool is None else by_name[pool])
